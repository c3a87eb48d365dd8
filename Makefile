# Two commands for a new user: `make up` and `make test`. Needs Python 3.11 or 3.12 and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# More of pyproject.toml's extras: make install EXTRA=browser
EXTRA  ?=
comma  := ,
EXTRAS := engine-cpu,model-smollm2,servers,test$(addprefix $(comma),$(EXTRA))
STAMP  := $(VENV)/.installed
CODE   := ppd controlplane planner workers simulator bench tests scripts

.DEFAULT_GOAL := help
.PHONY: help install up down status chat test test-compose test-gpu-image test-fresh lint format clean

help:            ## this list
	@sed -n 's/^\([a-z-]*\):.*## */\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

install: $(STAMP)  ## make .venv and install everything into it

$(STAMP): pyproject.toml scripts/install-cpu-engine scripts/cpu-overrides.txt
	@scripts/check-python $(PYTHON)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || scripts/step "make $(VENV)" $(PYTHON) -m venv $(VENV)
	@scripts/install-cpu-engine $(BIN)/python -e '.[$(EXTRAS)]'
	@touch $@

up: $(STAMP)     ## start the whole stack and serve a model; UP="--placement 1R --port 9000" for other flags
	@$(BIN)/ppd up $(UP)

down: $(STAMP)   ## stop it
	@$(BIN)/ppd down

status: $(STAMP) ## show it
	@$(BIN)/ppd status

chat: $(STAMP)   ## talk to it
	@$(BIN)/ppd chat

test: $(STAMP)   ## all tests, those against real engines included; T="-m unit" for some
ifdef T
	@$(BIN)/python -m pytest -m "not slow" $(T)
else
	@scripts/test-groups $(BIN)/python
endif

test-compose: $(STAMP)  ## the compose stack in containers, killed piece by piece; T=FILE for a part of it
	@PYTHON=$(abspath $(BIN)/python) scripts/compose-test $(T)

test-fresh:      ## `make up` on a bare Debian, as root; T=--test for `make test` there too
	@scripts/fresh-test $(T)

test-gpu-image: $(STAMP)  ## the GPU image, built and tested without a GPU; 25 GB of disk
	@PYTHON=$(abspath $(BIN)/python) scripts/gpu-image-test $(T)

lint: $(STAMP)   ## ruff and mypy
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy

format: $(STAMP) ## put the code into ruff's format
	@$(BIN)/ruff check --fix $(CODE)
	@$(BIN)/ruff format $(CODE)

clean:           ## remove .venv and the stack's state
	rm -rf $(VENV) .ppd
