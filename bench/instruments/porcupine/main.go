// Judges Jepsen's logs of one cas-register with Porcupine: a line of JSON per file, with CPU milliseconds.
//
//	porcupine RUNS LIMIT_S FILE…
//
// Of RUNS the least counts.  As in Porcupine's own tests, a cas that failed saw another value.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/anishathalye/porcupine"
)

const none = -1 << 62

type input struct{ op, a, b int }

type output struct {
	ok, unknown bool
	value       int
}

var model = porcupine.Model{
	Init: func() interface{} { return none },
	Step: func(state, in, out interface{}) (bool, interface{}) {
		st, i, o := state.(int), in.(input), out.(output)
		switch i.op {
		case 0:
			return o.unknown || o.value == st, st
		case 1:
			return true, i.a
		}
		if i.a == st {
			return o.ok || o.unknown, i.b
		}
		return !o.ok || o.unknown, st
	},
}

func number(word string) int {
	if word == "nil" {
		return none
	}
	value, err := strconv.Atoi(word)
	if err != nil {
		panic(err)
	}
	return value
}

func events(path string) []porcupine.Event {
	file, err := os.Open(path)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	var found []porcupine.Event
	open := map[int]int{}
	id := 0
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 7 || words[1] != "jepsen.util" || words[3] == ":nemesis" {
			continue
		}
		process, kind, f := number(words[3]), words[4], words[5]
		if kind == ":invoke" {
			in := input{}
			switch f {
			case ":write":
				in = input{1, number(words[6]), 0}
			case ":cas":
				in = input{2, number(words[6][1:]), number(words[7][:len(words[7])-1])}
			}
			found = append(found, porcupine.Event{ClientId: process, Kind: porcupine.CallEvent, Value: in, Id: id})
			open[process] = id
			id++
			continue
		}
		out := output{ok: kind == ":ok", unknown: kind == ":info" || words[6] == ":timed-out"}
		if kind == ":info" {
			continue
		}
		if f == ":read" && !out.unknown {
			out.value = number(words[6])
		}
		found = append(found, porcupine.Event{ClientId: process, Kind: porcupine.ReturnEvent, Value: out, Id: open[process]})
		delete(open, process)
	}
	for process, each := range open {
		found = append(found, porcupine.Event{ClientId: process, Kind: porcupine.ReturnEvent, Value: output{unknown: true}, Id: each})
	}
	return found
}

func cpuMs() float64 {
	var used syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	ns := time.Duration(used.Utime.Nano() + used.Stime.Nano())
	return float64(ns) / 1e6
}

func main() {
	runs, limit := number(os.Args[1]), time.Duration(number(os.Args[2]))*time.Second
	for _, path := range os.Args[3:] {
		ms, judging, verdict := 1e18, 1e18, ""
		for n := 0; n < runs; n++ {
			began := cpuMs()
			history := events(path)
			read := cpuMs()
			verdict = string(porcupine.CheckEventsTimeout(model, history, limit))
			ended := cpuMs()
			ms, judging = min(ms, ended-began), min(judging, ended-read)
			if verdict == string(porcupine.Unknown) {
				break
			}
		}
		json.NewEncoder(os.Stdout).Encode(map[string]interface{}{"file": path, "ms": ms, "judging": judging, "verdict": verdict})
	}
}
