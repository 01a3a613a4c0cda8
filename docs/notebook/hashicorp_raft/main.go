// Show that VerifyLeader of hashicorp/raft counts replies to requests that were sent before it was called.
//
//	go get github.com/hashicorp/raft@v1.8.0 && go run .
//
// Each try has three servers in this process, with the default time-outs.  From one moment on no server hears the
// leader.  It hears four replies to what it sent before 0.48, 0.96, 1.44 and 1.92 s late, and all else 1.7 s late.
package main

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

const (
	tries  = 12
	late   = 1700 * time.Millisecond
	spread = 480 * time.Millisecond // shorter than LeaderLeaseTimeout
	held   = 4
)

// network of one try.  The replies are held that come to the leader `deposed`, once there is one.
type network struct {
	deposed atomic.Value // raft.ServerAddress
	since   time.Time
	replies atomic.Int64
}

type link struct {
	*raft.InmemTransport
	net *network
}

func (l *link) toDeposed(to raft.ServerAddress) {
	if l.net.deposed.Load() == to {
		time.Sleep(late)
	}
}

func (l *link) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func (l *link) AppendEntries(id raft.ServerID, to raft.ServerAddress, request *raft.AppendEntriesRequest, reply *raft.AppendEntriesResponse) error {
	l.toDeposed(to)
	mine := func() bool { return l.net.deposed.Load() == l.LocalAddr() }
	if mine() && l.net.replies.Load() >= held {
		time.Sleep(time.Minute)
		return errors.New("nobody hears the leader")
	}
	err := l.InmemTransport.AppendEntries(id, to, request, reply)
	if mine() {
		time.Sleep(time.Until(l.net.since.Add(time.Duration(l.net.replies.Add(1)) * spread)))
	}
	return err
}

func (l *link) RequestVote(id raft.ServerID, to raft.ServerAddress, request *raft.RequestVoteRequest, reply *raft.RequestVoteResponse) error {
	l.toDeposed(to)
	return l.InmemTransport.RequestVote(id, to, request, reply)
}

func (l *link) RequestPreVote(id raft.ServerID, to raft.ServerAddress, request *raft.RequestPreVoteRequest, reply *raft.RequestPreVoteResponse) error {
	l.toDeposed(to)
	return l.InmemTransport.RequestPreVote(id, to, request, reply)
}

type register struct{ value atomic.Value }

func (r *register) Apply(entry *raft.Log) any           { r.value.Store(string(entry.Data)); return nil }
func (r *register) Snapshot() (raft.FSMSnapshot, error) { return nil, errors.New("none is taken") }
func (r *register) Restore(io.ReadCloser) error         { return errors.New("none was taken") }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func leader(servers []*raft.Raft, not int) int {
	for ; ; time.Sleep(time.Millisecond) {
		for i, server := range servers {
			if i != not && server.State() == raft.Leader {
				return i
			}
		}
	}
}

func try() string {
	net, links := &network{}, [3]*link{}
	var all raft.Configuration
	for i := range links {
		address, transport := raft.NewInmemTransport(raft.ServerAddress(fmt.Sprint("n", i)))
		links[i] = &link{transport, net}
		all.Servers = append(all.Servers, raft.Server{ID: raft.ServerID(address), Address: address})
	}
	var servers []*raft.Raft
	var registers [3]register
	for i, each := range links {
		for _, other := range links {
			each.Connect(other.LocalAddr(), other.InmemTransport)
		}
		config, store, snapshots := raft.DefaultConfig(), raft.NewInmemStore(), raft.NewInmemSnapshotStore()
		config.LocalID, config.LogOutput = all.Servers[i].ID, io.Discard
		must(raft.BootstrapCluster(config, store, store, snapshots, each, all))
		server, err := raft.NewRaft(config, &registers[i], store, store, snapshots, each)
		must(err)
		servers = append(servers, server)
	}
	old := leader(servers, -1)
	must(servers[old].Apply([]byte("1"), 0).Error())
	time.Sleep(time.Second)
	net.since = time.Now()
	net.deposed.Store(all.Servers[old].Address)
	must(servers[leader(servers, old)].Apply([]byte("2"), 0).Error())
	if servers[old].State() != raft.Leader {
		return "the old leader had stepped down before 2 was acknowledged"
	}
	if err := servers[old].VerifyLeader().Error(); err != nil {
		return "the old leader was not verified: " + err.Error()
	}
	return fmt.Sprint("2 was acknowledged, then the old leader was verified, and holds ", registers[old].value.Load())
}

func main() {
	found, counts := make(chan string), map[string]int{}
	for range tries {
		go func() { found <- try() }()
	}
	for range tries {
		counts[<-found]++
	}
	for what, count := range counts {
		fmt.Printf("%2d of %d: %s\n", count, tries, what)
	}
}
