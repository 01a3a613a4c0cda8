# `make test-partition` runs the main job, `make test` the project's own tests; both set up what they need first.
#
# make turns every failure into 2; CI reads results/latest/results.json, or calls `krucible run` itself.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALL := $(VENV)/bin/uv pip install --quiet --python $(PY)
# Two jobs: the node image is built beside the installation and the kernels.
MAKEFLAGS += --jobs=2
# Goals that make calls itself get only the variables that are handed on: they take others than their caller.
MAKEOVERRIDES =
HANDED_ON = BACKEND=$(BACKEND) PYTHON=$(PYTHON) VENV=$(VENV)

SUBJECT ?= kraft
BACKEND ?= auto
IMAGE = $(if $(filter auto docker,$(BACKEND)),$(VENV)/image)
# Without bytecode each process compiles what it imports anew, which takes up to 2 s of CPU.
unexport PYTHONDONTWRITEBYTECODE
# How commands that are printed begin (harness/spec.py).
export KRUCIBLE_STARTED_AS ?= make

# Variables of test-…, with their defaults.
# <!-- made: make-options -->
#   SEED=…                     Seed of all random choices.
#   NODES=5                    Servers, without client nodes.
#   TIME_LIMIT=60              Seconds of the main phase.
#   RATE=200                   Operations per second of all clients; 0: each client sends at once after an answer.
#   CONCURRENCY=10             Concurrent processes on all client nodes.
#   OP_TIMEOUT=2               Seconds that a client waits for an answer; 0.7 shows more stale reads than 2, the timeout of fetches.
#   RECOVERY_LIMIT=60          Seconds within which the system must recover after all faults are healed.
#   HOLDS=…                    Factor by which faults, the pauses between faults, and time limits are stretched, for a system whose fail-over takes longer than 4 s; 0: by `failover_s` of the system.
#   WAIVE=…                    Waive demands on the run, such as elections if a system needs none; the first line of the verdict mentions this.  `list` shows the names.
#   SET=…                      Parameters of the workload, such as held_s=2 of lock; `list` shows them.
#   KEYS=10                    Objects to work on, such as registers.
#   WORKLOAD=register          Workload: the operations that clients invoke.
#   SUBJECT=kraft              The system under test.
#   BACKEND=auto               Kind of nodes; auto: docker if it answers.
#   BUG=…                      Run the subject with this planted bug; see `list`.
#   SCHEDULE=…                 Play this schedule of faults (JSON) instead of a generated one.
#   STOP_ON_VIOLATION=1        End the main phase early when an online check finds a violation.
#   INVENTORY=…                The hosts of --backend ssh, a TOML file; see docs/ssh.md.

TAKES_TEST := KEEP \
	SEED \
	NODES \
	TIME_LIMIT \
	RATE \
	CONCURRENCY \
	OP_TIMEOUT \
	RECOVERY_LIMIT \
	HOLDS \
	WAIVE \
	SET \
	KEYS \
	WORKLOAD \
	SUBJECT \
	BACKEND \
	BUG \
	SCHEDULE \
	STOP_ON_VIOLATION \
	INVENTORY \

OPTIONS = \
	$(if $(SEED),--seed $(SEED)) \
	$(if $(NODES),--nodes $(NODES)) \
	$(if $(TIME_LIMIT),--time-limit $(TIME_LIMIT)) \
	$(if $(RATE),--rate $(RATE)) \
	$(if $(CONCURRENCY),--concurrency $(CONCURRENCY)) \
	$(if $(OP_TIMEOUT),--op-timeout $(OP_TIMEOUT)) \
	$(if $(RECOVERY_LIMIT),--recovery-limit $(RECOVERY_LIMIT)) \
	$(if $(HOLDS),--holds $(HOLDS)) \
	$(if $(WAIVE),--waive '$(WAIVE)') \
	$(if $(SET),--set '$(SET)') \
	$(if $(KEYS),--keys $(KEYS)) \
	$(if $(WORKLOAD),--workload '$(WORKLOAD)') \
	$(if $(SUBJECT),--subject '$(SUBJECT)') \
	$(if $(BACKEND),--backend '$(BACKEND)') \
	$(if $(BUG),--bug '$(BUG)') \
	$(if $(SCHEDULE),--schedule '$(SCHEDULE)') \
	$(if $(filter-out 0,$(STOP_ON_VIOLATION)),--stop-on-violation) \
	$(if $(INVENTORY),--inventory '$(INVENTORY)')

# <!-- end -->
OPTIONS += $(if $(KEEP),--keep $(KEEP))

# Live tests wait most of the time.  Three processes run them beside all others, which step back with `nice`: so the
# nodes of live tests are not short of processor time, and the others use what is left.  Style and types are verified
# beside them, too: before them one processor would do nothing.  The log ends with the slowest tests of both.
LIVE := docker or namespaces or spark or browser
# Only these files can hold a live test (tests/conftest.py verifies it): collecting all others takes 30 s of CPU a process.
LIVE_FILES = grep -rlE '$(subst $() or $(),|,$(LIVE))' tests --include='test_*.py'
TESTS := --tb=short --durations=10 --durations-min=1

SEEDS ?= 2
TIMES ?= 3
MINUTES ?= 60
REPLAYS ?= 5
ROOM ?= checkers/run_quality
DEMO_BUG ?= stale-read
DEMO_SEED ?= 3

# A variable that the goal does not take, or an empty one, is a slip: `BUGS=stale-read` would run a clean system.
TAKES_demo := DEMO_BUG DEMO_SEED
TAKES_nightly := SEEDS STOP_ON_VIOLATION TIME_LIMIT NIGHT
TAKES_hunt-bugs := SEEDS TIME_LIMIT BUG
TAKES_swarm := SEEDS BUG SEED MINUTES
TAKES_explore := BUG MINUTES EXPLORE
TAKES_hunt := MINUTES REPLAYS SEED BUG HUNT
TAKES_release := RUN
TAKES_findings := TIMES
TAKES_bench := FULL KEEP
TAKES_bench-quorum := KEEP
TAKES_mutation := ROOM SAMPLE SEED
takes = PYTHON VENV BACKEND SUBJECT $(TAKES_$1) $(if $(filter test-%,$1),$(TAKES_TEST)) $(if $(filter find-%,$1),SEED)
TAKEN := $(sort $(foreach goal,$(or $(MAKECMDGOALS),help),$(call takes,$(goal))))
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
meant = $(shell $(PYTHON) -c 'import difflib, sys; print(*difflib.get_close_matches(sys.argv[1], sys.argv[2:], 1, 0.5))' $1 $(TAKEN))
$(foreach name,$(filter-out $(TAKEN),$(GIVEN)),$(error krucible: make $(MAKECMDGOALS) takes no variable \
	$(name)$(foreach near,$(call meant,$(name)),; did you mean $(near)?)  It takes $(TAKEN)))
$(foreach name,$(GIVEN),$(if $(strip $($(name))),,$(error krucible: $(name)= is empty: give it a value, or leave it out)))

.DEFAULT_GOAL := help
.PHONY: help demo test lint style nightly nightly-tests swarm explore hunt hunt-bugs bench bench-quorum mutation docs findings list release serve clean-up setup

help: ## what there is
	@grep -hE '^[a-z-]+%?:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18
	@echo; echo "variables of test-…, with their defaults:"; sed -nE 's/^#   ([A-Z_]+=)/  \1/p' Makefile

demo: $(VENV)/prepared ## plant a bug that a partition shows, find it on virtual time (no Docker, the same bytes each time), and show what was found
	@$(PY) -m harness run --backend simulator --nemesis partition --bug $(DEMO_BUG) --seed $(DEMO_SEED) --time-limit 15 --rate 50 \
		--op-timeout 0.7; code=$$?; test $$code -eq 1 || exit $$code
	@echo "The planted bug was found, as it should be: the report shows the evidence."
	@echo "The same in containers: make test-partition BUG=$(DEMO_BUG) OP_TIMEOUT=0.7"

test-partition: ## cut links between the nodes of a bundled KRaft quorum, and judge it
test-pause: ## stop processes with SIGSTOP and let them go on
test-kill: ## kill processes with SIGKILL and restart them
test-membership: ## remove voters and bring them back, of the KRaft whose voters can change (or of SUBJECT=etcd)
test-membership: SUBJECT = kraft-voters

test-all: ## every kind of fault that the system and the backend allow, at once

test-%: $(VENV)/prepared $(IMAGE) ## any kind of fault of `make list`, or several at once, such as test-power or test-partition,kill
	@$(PY) -m harness run --nemesis $* $(OPTIONS)

test: $(VENV)/prepared-all $(VENV)/testing $(IMAGE) ## the project's own tests (about 10 minutes on 2 cores)
	@log=$(VENV)/live-tests.log; typing=$(VENV)/types.log; \
	$(PY) -m pytest -m "not nightly and ($(LIVE))" $(TESTS) $$($(LIVE_FILES)) --numprocesses 3 --dist loadfile >$$log 2>&1 & live=$$!; \
	trap "kill $$live" INT TERM; \
	$(MAKE) --no-print-directory style $(HANDED_ON) || { kill $$live; exit 1; }; \
	nice $(VENV)/bin/mypy >$$typing 2>&1 & types=$$!; \
	trap "kill $$types $$live" INT TERM; \
	nice $(PY) -m pytest -m "not nightly and not ($(LIVE))" $(TESTS) --numprocesses 2 --dist worksteal; others=$$?; \
	wait $$types; types=$$?; cat $$typing; \
	echo "the live tests, which ran beside the others:"; \
	wait $$live; live=$$?; cat $$log; \
	test $$others -eq 0 && test $$types -eq 0 && test $$live -eq 0

lint: style $(VENV)/testing ## formatting, types and the floors of the tree
	@$(VENV)/bin/mypy

style: $(VENV)/testing
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/lint-imports

bench: $(VENV)/prepared-all $(VENV)/testing ## measure what judging costs (FULL=1: ten million of everything, a quarter of an hour; KEEP=1: keep the figures to compare with)
	@$(PY) -m bench.everything $(if $(FULL),--full) $(if $(KEEP),--keep)

bench-quorum: $(VENV)/prepared-all $(VENV)/testing ## measure the bundled KRaft beside etcd: writes, failover, start, memory (eight minutes; KEEP=1: keep the figures)
	@$(PY) -m bench.everything --full --only quorum $(if $(KEEP),--keep)

mutation: $(VENV)/prepared-all $(VENV)/testing ## what the tests of a room are worth (ROOM=checkers/raft, SAMPLE=200 of its mutants)
	@$(INSTALL) --editable '.[mutation]'
	@$(PY) -m bench.mutation $(ROOM) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED))

nightly: $(VENV)/prepared-all $(VENV)/testing $(IMAGE) ## every test and every planted bug over SEEDS seeds, and a summary page (NIGHT="--bug …" for a short one)
	@$(PY) -m harness nightly --seeds $(SEEDS) --backend $(BACKEND) $(if $(TIME_LIMIT),--time-limit $(TIME_LIMIT)) \
		$(if $(filter-out 0,$(STOP_ON_VIOLATION)),--stop-on-violation) $(NIGHT)
	@$(MAKE) nightly-tests $(HANDED_ON)
	@$(MAKE) findings TIMES=1 $(HANDED_ON)

nightly-tests: $(VENV)/prepared-all $(VENV)/testing $(IMAGE) ## the project's own long tests, with new random cases
	@$(PY) -m pytest -m "(nightly or hypothesis) and not docker and not spark" --hypothesis-profile=night \
		--numprocesses logical --maxprocesses 4 --dist worksteal
	@$(PY) -m pytest -m "nightly and (docker or spark)"

hunt-bugs: $(VENV)/prepared $(IMAGE) ## every planted bug over SEEDS seeds: found how often, after how many seconds (BUG=… for one)
	@$(PY) -m harness hunt-bugs --seeds $(SEEDS) --subject $(SUBJECT) --backend $(BACKEND) $(if $(TIME_LIMIT),--time-limit $(TIME_LIMIT)) \
		$(if $(BUG),--bug $(BUG))

hunt: $(VENV)/prepared ## random tests over SUBJECT until something is found, or for MINUTES; what is found is replayed REPLAYS times
	@$(PY) -m harness hunt --subject $(SUBJECT) --backend $(BACKEND) --minutes $(MINUTES) --times $(REPLAYS) \
		$(if $(SEED),--seed $(SEED)) $(if $(BUG),--bug $(BUG)) $(HUNT)

swarm: $(VENV)/prepared ## storms against the bundled KRaft on virtual time: SEEDS=10000 of them, on Spark
	@$(PY) -m harness swarm --seeds $(if $(filter file,$(origin SEEDS)),1000,$(SEEDS)) $(if $(SEED),--first-seed $(SEED)) \
		$(if $(filter command,$(origin MINUTES)),--minutes $(MINUTES)) $(if $(BUG),--bug $(BUG))

explore: $(VENV)/installed ## every order of messages, timeouts and crashes of three voters (EXPLORE="--writes 1", BUG=…)
	@$(PY) -m harness explore --minutes $(if $(filter command,$(origin MINUTES)),$(MINUTES),1) $(if $(BUG),--bug $(BUG)) $(EXPLORE)

find-%: $(VENV)/prepared $(IMAGE) ## see a finding in a real system again, such as find-redis (docs/findings.md)
	@$(PY) -m harness find $* --backend $(BACKEND) $(if $(SEED),--seed $(SEED))

findings: $(VENV)/prepared $(IMAGE) ## see every finding again TIMES times, and its clean counterpart, and renew docs/findings.md
	@$(PY) -m harness findings --backend $(BACKEND) --times $(TIMES); code=$$?; $(PY) docs/generate.py; exit $$code

docs: $(VENV)/installed ## renew the tables and drawings in docs/ that are made from the code
	@$(PY) docs/generate.py

list: $(VENV)/installed ## every workload, nemesis, backend, subject and planted bug
	@$(PY) -m harness list

setup: $(VENV)/prepared $(IMAGE) ## only prepare this machine

release: $(VENV)/installed ## end a cluster that KEEP=always or KEEP=on-violation left up (RUN=… or all of them)
	@$(PY) -m harness release $(or $(RUN),--all)

serve: $(VENV)/installed ## show all runs on a local page: filter, compare, watch
	@$(PY) -m harness serve

clean-up: $(VENV)/installed ## remove what runs that died left behind
	@$(PY) -m harness clean-up

$(VENV)/begun: pyproject.toml
	@echo "installing what the harness needs into $(VENV) (one to two minutes)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { echo "krucible: $(PYTHON) cannot make a virtual environment; install python3-venv, or set PYTHON to a Python 3.11"; exit 1; }
	@$(PY) -m pip install --quiet --disable-pip-version-check 'uv>=0.13'
	@$(INSTALL) "$$(grep -oE 'docker>=[0-9.]+' pyproject.toml)"
	@touch $@

$(VENV)/installed: $(VENV)/begun
	@$(INSTALL) --editable . $$(command -v java >/dev/null || echo '.[java]')
	@touch $@

$(VENV)/image: $(VENV)/begun
	@$(PY) -m harness.backends.docker_image build || test $(BACKEND) = auto
	@touch $@

$(VENV)/testing: $(VENV)/installed
	@$(INSTALL) --editable '.[test]'
	@touch $@

SOURCES := $(shell find harness/agent harness/backends system_under_test checkers -name '*.py' 2>/dev/null)

$(VENV)/prepared: $(VENV)/installed $(SOURCES)
	@$(PY) -m harness setup --backend $(BACKEND) --subject $(SUBJECT)
	@touch $@

$(VENV)/prepared-all: $(VENV)/installed $(SOURCES)
	@$(PY) -m harness setup --all --backend $(BACKEND) --subject $(SUBJECT)
	@touch $@ $(VENV)/prepared
