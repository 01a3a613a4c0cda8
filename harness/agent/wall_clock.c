/* Library that shifts CLOCK_REALTIME of one program at run time.  The monotonic clock is not changed.

   The library is loaded with LD_PRELOAD.  KRUCIBLE_CLOCK names a file, which is mapped into memory.  It contains three
   64-bit little-endian integers:

       offset_ns     nanoseconds added to the real time
       rate_ppb      parts per billion by which the clock runs fast (negative: slow)
       since_ns      real time from which the rate applies

   The library uses no C library, so that one build can be loaded into every dynamically linked program of this machine's
   architecture.  It has no effect on programs that are linked statically or call the kernel directly (Go). */

#include <stdint.h>

typedef int64_t i64;
struct timespec64 { i64 seconds, nanoseconds; };
struct timeval64 { i64 seconds, microseconds; };
struct order { volatile i64 offset_ns, rate_ppb, since_ns; };

#define NS 1000000000LL
#define REALTIME 0
#define REALTIME_COARSE 5

#if defined(__x86_64__)
enum { OPEN_AT = 257, MAP = 9, GET_TIME = 228 };
static long kernel(long n, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
enum { OPEN_AT = 56, MAP = 222, GET_TIME = 113 };
static long kernel(long n, long a, long b, long c, long d, long e, long f) {
    register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c,
                  x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
#else
#error "the clock shim knows x86_64 and aarch64"
#endif

static struct order *ordered;

static int equal(const char *a, const char *b, int length) {
    for (int i = 0; i < length; i++)
        if (a[i] != b[i]) return 0;
    return 1;
}

__attribute__((constructor)) static void attach(int argc, char **argv, char **environment) {
    static const char name[] = "KRUCIBLE_CLOCK=";
    for (char **each = environment; each && *each; each++) {
        if (!equal(*each, name, sizeof name - 1)) continue;
        long file = kernel(OPEN_AT, -100, (long)(*each + sizeof name - 1), 0, 0, 0, 0);
        if (file < 0) return;
        long mapped = kernel(MAP, 0, sizeof(struct order), 1 /* read */, 1 /* shared */, file, 0);
        if (mapped > 0 || mapped < -4095) ordered = (struct order *)mapped;
        return;
    }
}

static i64 shift_ns(i64 now_ns) {
    if (!ordered) return 0;
    i64 gone_ns = now_ns - ordered->since_ns;
    return ordered->offset_ns + gone_ns / NS * ordered->rate_ppb + gone_ns % NS * ordered->rate_ppb / NS;
}

int clock_gettime(int clock, struct timespec64 *out) {
    long failed = kernel(GET_TIME, clock, (long)out, 0, 0, 0, 0);
    if (failed) return -1;
    if (clock == REALTIME || clock == REALTIME_COARSE) {
        i64 now_ns = out->seconds * NS + out->nanoseconds;
        now_ns += shift_ns(now_ns);
        out->seconds = now_ns / NS;
        out->nanoseconds = now_ns % NS;
    }
    return 0;
}

int gettimeofday(struct timeval64 *out, void *zone) {
    struct timespec64 now;
    (void)zone;
    if (clock_gettime(REALTIME, &now)) return -1;
    out->seconds = now.seconds;
    out->microseconds = now.nanoseconds / 1000;
    return 0;
}

i64 time(i64 *out) {
    struct timespec64 now;
    if (clock_gettime(REALTIME, &now)) return -1;
    if (out) *out = now.seconds;
    return now.seconds;
}
