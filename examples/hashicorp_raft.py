"""hashicorp/raft 1.8.0, the Raft of Consul, Nomad and Vault in Go, embedded in a program that speaks JSON lines.

Promised in the comment of `VerifyLeader`: it "may be used to prevent returning stale data from the FSM after the peer
has lost leadership".  As in Consul, Nomad and Vault, a new leader first applies all entries committed before its term.
"""

import json

from json_lines import JsonLines

from krucible import Artefact, Needs, System

MODULES = ("github.com/hashicorp/raft@v1.8.0", "github.com/hashicorp/raft-boltdb/v2@v2.3.0")
MAIN = r"""
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

type registers struct {
	sync.Mutex
	held map[string]any
}

func (r *registers) Apply(log *raft.Log) any {
	var words []any
	must(0, json.Unmarshal(log.Data, &words))
	r.Lock()
	defer r.Unlock()
	key := words[1].(string)
	if words[0] == "cas" {
		if r.held[key] != words[2] {
			return false
		}
		words = words[1:]
	}
	r.held[key] = words[2]
	return true
}

func (r *registers) Snapshot() (raft.FSMSnapshot, error) {
	r.Lock()
	defer r.Unlock()
	content, err := json.Marshal(r.held)
	return snapshot(content), err
}

func (r *registers) Restore(from io.ReadCloser) error {
	held := map[string]any{}
	err := json.NewDecoder(from).Decode(&held)
	r.Lock()
	defer r.Unlock()
	r.held = held
	return err
}

type snapshot []byte

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(s); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (s snapshot) Release() {}

type server struct {
	raft     *raft.Raft
	kept     *registers
	barrier  bool
	caughtUp atomic.Uint64 // the last term in which this leader had applied all entries committed before the term
}

// read returns a value that no leader had replaced when the request arrived.
func (s *server) read(key string) (any, error) {
	term := s.raft.CurrentTerm()
	if s.barrier || s.caughtUp.Load() != term {
		if err := s.raft.Barrier(5 * time.Second).Error(); err != nil {
			return nil, err
		}
	} else if err := s.raft.VerifyLeader().Error(); err != nil {
		return nil, err
	}
	if s.raft.CurrentTerm() != term {
		return nil, errors.New("the term changed")
	}
	s.caughtUp.Store(term)
	s.kept.Lock()
	defer s.kept.Unlock()
	return s.kept.held[key], nil
}

func (s *server) answer(line []byte) (any, error) {
	var words []any
	if err := json.Unmarshal(line, &words); err != nil {
		return nil, err
	}
	switch words[0] {
	case "status":
		term := s.raft.CurrentTerm()
		_, leader := s.raft.LeaderWithID()
		if s.raft.CurrentTerm() != term {
			leader = ""
		}
		return []any{term, leader}, nil
	case "read":
		return s.read(words[1].(string))
	}
	future := s.raft.Apply(line, 5*time.Second)
	err := future.Error()
	return future.Response(), err
}

func (s *server) serve(client net.Conn) {
	defer client.Close()
	for lines := bufio.NewScanner(client); lines.Scan(); {
		found, err := s.answer(lines.Bytes())
		answer := map[string]any{"ok": found}
		if errors.Is(err, raft.ErrNotLeader) { // the entry was never in the log
			answer = map[string]any{"refused": err.Error()}
		} else if err != nil {
			answer = map[string]any{"error": err.Error()}
		}
		if json.NewEncoder(client).Encode(answer) != nil || string(lines.Bytes()) == `["status"]` {
			return
		}
	}
}

func must[T any](made T, err error) T {
	if err != nil {
		panic(err)
	}
	return made
}

// Arguments: way to read ("verify" or "barrier"), name and address of this node, names and addresses of all nodes.
func main() {
	how, address := os.Args[1], os.Args[3]
	config := raft.DefaultConfig()
	config.LocalID = raft.ServerID(os.Args[2])
	transport := must(raft.NewTCPTransport(address+":7001", nil, 3, 10*time.Second, os.Stderr))
	store := must(raftboltdb.NewBoltStore("raft.db"))
	snapshots := must(raft.NewFileSnapshotStore(".", 2, os.Stderr))
	if !must(raft.HasExistingState(store, store, snapshots)) {
		var all raft.Configuration
		for i := 4; i < len(os.Args); i += 2 {
			id, at := raft.ServerID(os.Args[i]), raft.ServerAddress(os.Args[i+1]+":7001")
			all.Servers = append(all.Servers, raft.Server{ID: id, Address: at})
		}
		must(0, raft.BootstrapCluster(config, store, store, snapshots, transport, all))
	}
	kept := &registers{held: map[string]any{}}
	here := &server{kept: kept, barrier: how == "barrier"}
	here.raft = must(raft.NewRaft(config, kept, store, store, snapshots, transport))
	for listener := must(net.Listen("tcp", address+":7000")); ; {
		go here.serve(must(listener.Accept()))
	}
}
"""


class HashicorpRaft(System):
    port = 7000
    needs = Needs(
        artefacts={
            "raft-node": Artefact(
                "hashicorp/raft 1.8.0",
                (("go", "get", *MODULES), ("go", "build", "-o", "raft-node", ".")),
                "raft-node",
                {"go.mod": "module krucible/raft\n\ngo 1.25\n", "main.go": MAIN},
            )
        }
    )
    complaints = "^panic: |^fatal error: "
    unreachable_by = {"clock": "it is written in Go, which reads the clock without the C library"}
    read_by = "verify"

    async def start(self, node, nodes):
        everyone = (word for each in nodes for word in (each.name, each.address))
        return ["./raft-node", self.read_by, node.name, node.address, *everyone]

    async def status(self, node):
        line = await node.ask(self.port, '["status"]', timeout_s=1.0)
        if not line:
            return None
        term, leader = json.loads(line)["ok"]
        return node.reports(term, leader or None)


class Barriers(HashicorpRaft):
    """Each read appends its own entry to the log, and waits for it."""

    read_by = "barrier"


class Registers(JsonLines):
    def leader(self):
        _, leader = max(self.known())
        return leader

    def read(self, key):
        return self.ask("read", key)

    def write(self, key, value):
        self.ask("write", key, value)

    def cas(self, key, expected, new):
        return self.ask("cas", key, expected, new)
