"""Embedded stores in Go behind a port that speaks JSON lines (docs/library-as-a-system.md).

Each store is a file `store.go` with `open() store`.  A set has a key for each element, and a list is one value.
"""

from json_lines import Transactions

from krucible import Artefact, Needs, System

MAIN = r"""
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
)

// store is an embedded database.  transact runs a function as one transaction that is durable when it returns; the
// first result is true if the store refused it.  keys lists all keys with a prefix, and removes the prefix.
type store interface {
	transact(func(transaction) error) (bool, error)
	keys(prefix string) ([]string, error)
}

// transaction: get returns nil if the key has no value.
type transaction interface {
	get(key string) ([]byte, error)
	set(key string, value []byte) error
}

type entry struct {
	List  []any
	Noise []byte
}

var noise = func() []byte { // 4 KiB that cannot be compressed, so that files grow and are compacted
	state, made := uint64(1), make([]byte, 4096)
	for i := range made {
		state = state*6364136223846793005 + 1442695040888963407
		made[i] = byte(state >> 56)
	}
	return made
}()

func runSteps(steps []any, on transaction) error {
	written := map[string][]byte{} // in some stores a transaction cannot read its own writes
	for _, each := range steps {
		step := each.([]any)
		key, held := "list/"+step[1].(string), entry{List: []any{}, Noise: noise}
		text, err := written[key], error(nil)
		if text == nil {
			text, err = on.get(key)
		}
		if err == nil && text != nil {
			err = json.Unmarshal(text, &held)
		}
		if err != nil {
			return err
		}
		if step[0] == "r" {
			step[2] = held.List
			continue
		}
		held.List = append(held.List, step[2])
		text, err = json.Marshal(held)
		if err == nil {
			written[key], err = text, on.set(key, text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func answer(in store, line []byte) map[string]any {
	var words []any
	must(0, json.Unmarshal(line, &words))
	var found any
	var refused bool
	var err error
	switch words[0] {
	case "add":
		name := fmt.Sprintf("%s/%.0f", words[1], words[2])
		refused, err = in.transact(func(on transaction) error { return on.set(name, noise) })
	case "members":
		found, err = in.keys(words[1].(string) + "/")
	case "transact":
		refused, err = in.transact(func(on transaction) error { return runSteps(words[1].([]any), on) })
		found = words[1]
	}
	if err == nil {
		return map[string]any{"ok": found}
	}
	if refused {
		return map[string]any{"refused": err.Error()}
	}
	return map[string]any{"error": err.Error()}
}

func serve(in store, client net.Conn) {
	defer client.Close()
	for lines := bufio.NewScanner(client); lines.Scan(); {
		if json.NewEncoder(client).Encode(answer(in, lines.Bytes())) != nil {
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

func main() {
	in := open()
	for listener := must(net.Listen("tcp", os.Args[1])); ; {
		go serve(in, must(listener.Accept()))
	}
}
"""


def made(name, module, store, mend=""):
    """Return the needs of a node that runs a store.

    module: Go module of the store, with its version
    store: text of store.go
    mend: patch of the folder `vendor`, to fix a bug of the store; "" for none
    """
    files = {"go.mod": "module krucible/store\n\ngo 1.25\n", "main.go": MAIN, "store.go": store, "mend.patch": mend}
    commands = (("go", "get", module), ("go", "mod", "vendor"), ("git", "apply", "--allow-empty", "mend.patch"))
    build = ("go", "build", "-mod=vendor", "-o", "store", ".")
    return Needs(artefacts={"store": Artefact(name, (*commands, build), "store", files)})


class GoStore(System):
    port = 7000
    elections = False
    client = Transactions
    complaints = "^panic: |^fatal error: "
    unreachable_by = {"clock": "it is written in Go, which reads the clock without the C library"}

    async def start(self, node, nodes):
        return ["./store", f"{node.address}:{self.port}"]
