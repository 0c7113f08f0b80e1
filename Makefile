# make setup   .venv with Ullage in it; compiles the kernels
# make demo    ask a small model a question, see its speed and its memory
# make serve   the same, and the server stays up
# make test    all tests
# make check   what CI runs: tests, lint, types, import contracts
# make fuzz    25 minutes of broken requests to a real server
# make chaos   30 minutes of trouble for a real server, then the books are compared
# make bench   speed of the engine on this machine

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
KERNEL_SOURCES := $(wildcard CMakeLists.txt src/ullage/kernels/native/*)

.PHONY: setup setup-dev demo serve test lint check fuzz chaos bench clean

setup: $(VENV)/installed
setup-dev: $(VENV)/installed-dev

demo: setup
	@$(BIN)/ullage demo

serve: setup
	@$(BIN)/ullage demo --stay-up

# numpy's threads wait for each other longer than they compute on matrices as small as the tests', much longer beside
# another busy program.
test: export OPENBLAS_NUM_THREADS = 1
test: setup-dev
	@$(BIN)/python -m pytest

lint: setup-dev
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports

check: test lint

fuzz: setup-dev
	@$(BIN)/python -m pip install --quiet --group fuzz
	@$(BIN)/ullage pull smollm2
	@$(BIN)/python -m tests.fuzz.run --minutes 25

chaos: setup-dev
	@$(BIN)/ullage pull smollm2
	@$(BIN)/python -m tests.chaos.run --minutes 30

bench: setup
	@$(BIN)/ullage pull smollm2
	@$(BIN)/ullage bench engine smollm2

clean:
	rm -rf $(VENV) build

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'error: $(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.12 ...' >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo 'error: no virtual environment; on Debian and Ubuntu: apt install python3-venv' >&2; exit 2; }

$(VENV)/installed: $(BIN)/python pyproject.toml $(KERNEL_SOURCES)
	@echo 'installing Ullage into $(VENV), compiling the kernels (a minute or two)'
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --editable .
	@$(BIN)/python -c 'import sys; from ullage.kernels.native import native_unavailable_reason as reason; sys.exit(reason() is not None)' || \
		echo 'WARNING: the kernels were NOT compiled; the slow numpy reference will run. With a C++ compiler: make clean setup' >&2
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@$(BIN)/python -m pip install --quiet --group dev
	@touch $@
