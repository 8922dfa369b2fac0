# All commands of this project: `make` lists them. Everything is made inside .venv/ and build/.
# A second run repeats nothing: each part of .venv has a stamp file, which is made again when its sources change.

PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
STAMPS := .venv/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# requirements(KEYS): one list of pyproject.toml, so that versions are in one place.
requirements = $(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))$(1), sep="\n")'
CORE := $(shell find csrc -type f) $(shell find csrc -type d)
MODULES := $(sort $(shell find src/hocket -name '*.py'))
CPP := $(shell find csrc tests benchmarks -name '*.h' -o -name '*.cpp')
CONFIGURE = $(BIN)/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DHOCKET_PYTHON=OFF -DHOCKET_TESTS=ON
TCP_SUITES := collectives uneven point_to_point point_to_point_failures groups mesh objects reductions async streamed_calls \
  stream stream_programs communicator mismatch words_of_failures cached_calls cached_messages cached_results cached_works
SANITIZERS := thread address,undefined

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-quick check bench compare matrix hosts engines tcp backends algorithms validate docs docs-pictures core sanitize fuzz mutation exits streams ci wheel format build size clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo '  demo, test, test-quick, bench, compare, matrix, hosts, engines, tcp, backends, fuzz, mutation, exits and streams pass ARGS="..." on, for example: make test ARGS="-k ring -x"'

demo: build ## Train a digit classifier on four processes; a freshly proved algorithm sums every gradient
	@$(BIN)/hocket demo $(ARGS)

test: build $(STAMPS)/test ## Run the tests
	@$(BIN)/python -m pytest $(ARGS)

test-quick: $(STAMPS)/tools $(STAMPS)/test ## Run the tests that need no compiled code and start no process: under a minute
	@PYTHONPATH=src $(BIN)/python -m pytest tests/schedule tests/algorithms tests/network tests/view --quick $(ARGS)

check: src/hocket/_core.pyi src/hocket/_simulator.pyi $(STAMPS)/check ## Check lint, types and layout of Python and C++, C++ for aarch64 and by clang; change nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	@$(if $(CPP),$(BIN)/clang-format --dry-run --Werror $(CPP))
	@PATH="$(CURDIR)/$(BIN):$$PATH" .ci/tidy
	@.ci/compilers

bench: build $(STAMPS)/test ## Time Hocket, Gloo and hand-written code for a few sizes; make compare has more
	@$(BIN)/python benchmarks/compare.py --quick --peers gloo --report-only $(ARGS)

compare: build $(STAMPS)/test ## Compare Hocket with Gloo and three MPIs (installed in build/peers) and with the goals (ARGS=--quick: 7 minutes)
	@$(BIN)/python benchmarks/compare.py $(ARGS)

matrix: build $(STAMPS)/test ## Check every collective, type and reduction against NumPy; write docs/reports/matrix.md
	@$(BIN)/python -m tests.matrix $(ARGS)

hosts: build $(STAMPS)/test ## Run the tests over several hosts, in network namespaces (needs root)
	@$(BIN)/python -m pytest tests/hosts --long $(ARGS)

engines: build $(STAMPS)/test ## Start jobs over hosts with torchrun, Ray, Slurm, MPI and ssh (installs them in build/engines; needs root)
	@$(BIN)/python -m tests.engines.installed
	@$(BIN)/python -m pytest tests/engines --long $(ARGS)

tcp: build $(STAMPS)/test ## Run the tests of collectives and messages, PyTorch and training over TCP between ranks of this machine
	@HOCKET_TRANSPORT=tcp $(BIN)/python -m pytest tests/matrix tests/torch_backend tests/conformance tests/training \
	  $(TCP_SUITES:%=tests/runtime/test_%.py) $(ARGS)

backends: build $(STAMPS)/test ## Try the same on Gloo and MPI (installed in build/peers); write docs/reports/backends.md
	@$(BIN)/python benchmarks/backends.py $(ARGS)

algorithms: build $(STAMPS)/test ## Write docs/reports/algorithms.md, and the command outputs in docs/algorithms.md
	@$(BIN)/python -m tests.algorithms.table

validate: build $(STAMPS)/test ## Compare the simulator with published measurements and this machine's times; write docs/reports/validation.md
	@$(BIN)/python -m tests.network.validation $(ARGS)

docs: build $(STAMPS)/test $(STAMPS)/docs ## Build the documentation site, build/docs/index.html; warnings are errors
	@rm -rf build/docs
	$(BIN)/python -m sphinx -W --keep-going -E -q -c docs -d build/doctrees . build/docs
	@$(BIN)/python docs/site/offline.py build/docs

docs-pictures: build $(STAMPS)/test ## Draw the pictures of docs/; write calls.md and from-row-to-plan.md, and networks.md, routes.md, slow_links.md and variables.md of docs/reports
	@set -e; for program in docs/pictures/*.py; do $(BIN)/python $$program; done
	@$(BIN)/python -m tests.runtime.routes_table
	@$(BIN)/python -m tests.runtime.variables_table
	@$(BIN)/python -m tests.network.slow_links_page

core: build ## Run the C++ tests of the core on real plans
	@mkdir -p build
	$(BIN)/python tests/core/export_plans.py build/plans.txt
	@$(CONFIGURE) -B build/core -DCMAKE_BUILD_TYPE=Release --log-level=WARNING
	@$(BIN)/cmake --build build/core
	build/core/core_tests build/plans.txt

sanitize: build ## Run the C++ tests of the core under ThreadSanitizer, then under AddressSanitizer and UBSan
	@mkdir -p build
	$(BIN)/python tests/core/export_plans.py build/plans.txt
	@set -e; for kind in $(SANITIZERS); do $(MAKE) --no-print-directory sanitize-$$kind; done

# gcc's ThreadSanitizer fails at once if the kernel randomises addresses widely (vm.mmap_rnd_bits > 28), so the tests run
# without address randomisation, if the system allows it.
sanitize-%:
	@$(CONFIGURE) -B build/sanitize/$* -DCMAKE_BUILD_TYPE=Debug -DHOCKET_SANITIZE=$* --log-level=WARNING
	@$(BIN)/cmake --build build/sanitize/$*
	@fixed=; setarch -R true 2>/dev/null && fixed="setarch -R"; set -x; \
	  TSAN_OPTIONS=halt_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_stack_use_after_return=1 \
	  $$fixed build/sanitize/$*/core_tests build/plans.txt

fuzz: build $(STAMPS)/test ## Give 10 million inputs to each parser of bytes from other ranks and boards (ARGS="--runs 1000000 --targets frames")
	@$(BIN)/python -m tests.fuzz.campaign $(ARGS)

mutation: build $(STAMPS)/test ## Break every algorithm at random and check that the proof notices; write docs/reports/mutation.md
	@$(BIN)/python -m tests.schedule.mutants $(ARGS)

exits: build $(STAMPS)/test ## Test PyTorch ranks that end with pending operations (ARGS="--exits 100")
	@$(BIN)/python -m tests.torch_backend.drill $(ARGS)

streams: build $(STAMPS)/test ## Test random programs of streams, events and collectives against a model (ARGS="--programs 10000")
	@$(BIN)/python -m tests.runtime.stream_programs $(ARGS)

ci: ## Run everything that must pass before a change is merged, as .ci/run does
	@.ci/run

# The compiled files come from the build folder of the editable installation, so this compiles only what changed.
wheel: $(STAMPS)/tools ## Build a wheel in dist/, install it in an empty venv and run the demonstration there
	@rm -rf dist
	@$(PIP) wheel --no-build-isolation --no-deps --wheel-dir dist .
	@set -e; wheel=$$(echo "$(CURDIR)"/dist/*.whl); folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; set -x; \
	  $(BIN)/python -m venv "$$folder"; cd "$$folder"; \
	  bin/python -m pip install --disable-pip-version-check --quiet "$$wheel"; bin/hocket demo

format: $(STAMPS)/check ## Format Python and C++
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	@$(if $(CPP),$(BIN)/clang-format -i $(CPP))

build: $(STAMPS)/build ## Make .venv with an editable Hocket, and compile the changed parts of the core

size: ## Count lines per folder, and list files above 500 lines
	@find src csrc tests examples benchmarks -name '*.py' -o -name '*.h' -o -name '*.cpp' | xargs wc -l | awk '\
	  $$2 == "total" { next } \
	  { n = split($$2, part, "/"); folder = part[1]; for (i = 2; i < n && i < 4; i++) folder = folder "/" part[i]; \
	    lines[folder] += $$1; files[folder]++; all += $$1; if ($$1 > 500) long = long "  " $$2 " (" $$1 ")\n" } \
	  END { for (folder in lines) printf "%7d lines %4d files  %s\n", lines[folder], files[folder], folder | "sort -k5"; \
	    close("sort -k5"); printf "%7d lines in all\n", all; if (long) printf "above 500 lines:\n%s", long }'

clean: ## Remove .venv, build and all caches
	rm -rf .venv build dist src/hocket/_core.pyi src/hocket/_simulator.pyi .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "Hocket needs Python 3.11 or newer, and \
	$(PYTHON) is %d.%d: make PYTHON=python3.12 ..." % v[:2])'
	@$(PYTHON) -m venv .venv
	@mkdir -p $(STAMPS)
	@touch $@

# Without build isolation the build folder stays valid, so a second build compiles only changed files.
$(STAMPS)/tools: pyproject.toml $(STAMPS)/venv
	@echo "Installing the build tools and the packages that Hocket needs" >&2
	@$(PIP) install $$($(call requirements,["project"]["dependencies"])) $$($(call requirements,["build-system"]["requires"])) \
	  $$($(call requirements,["project"]["optional-dependencies"]["build"]))
	@touch $@

# An editable installation stores the path of each module, so it is made again when one is added, moved or removed.
$(STAMPS)/modules: $(STAMPS)/venv FORCE
	@echo $(MODULES) | cmp -s - $@ || echo $(MODULES) >$@
FORCE:

$(STAMPS)/build: $(STAMPS)/tools $(STAMPS)/modules CMakeLists.txt src/hocket/__init__.py $(CORE)
	@echo "Building the core; all output goes to build/core.log" >&2
	@mkdir -p build; rm -f $@.failed
	@{ $(PIP:--quiet=--verbose) install --no-build-isolation --no-deps --editable . || touch $@.failed; } 2>&1 | tee build/core.log \
	  | sed -un 's/.*\[\([1-9][0-9]*0\)\/\([0-9]*\)\] .*/  step \1 of \2/p' >&2
	@if [ -e $@.failed ]; then rm $@.failed; cat build/core.log >&2; exit 1; fi
	@touch $@

# Type stubs of the compiled modules, for mypy.
src/hocket/_core.pyi src/hocket/_simulator.pyi: src/hocket/%.pyi: $(STAMPS)/build
	@$(BIN)/python -m nanobind.stubgen --quiet --module hocket.$* --output-file $@

$(STAMPS)/test $(STAMPS)/check $(STAMPS)/docs: $(STAMPS)/%: pyproject.toml $(STAMPS)/venv
	@echo "Installing the packages that make $* needs" >&2
	@$(PIP) install $$($(call requirements,["project"]["optional-dependencies"]["$*"]))
	@touch $@
