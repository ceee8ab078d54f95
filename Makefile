# Two commands on a fresh machine: `make demo` and `make test`. Each makes its own environment in .venv.
# Lines that begin with ## are what `make help` prints.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest
ALGORITHM ?= steffle
ENGINE ?= one-process

NAME ?= fair-plugin

.PHONY: help demo test test-full flower nvflare soak experiments bench lint house docs package clean

## help: list the targets
help:
	@sed -n 's/^## //p' Makefile

## demo: calibrate, train and audit in one go, into demo/ (ALGORITHM=steffle, ENGINE=one-process, flower or nvflare)
# ENGINE=flower and ENGINE=nvflare run in the environment that has the engine.
ifneq ($(filter flower nvflare,$(ENGINE)),)
demo: $(VENV)-$(ENGINE)/.done
	PYTHONPATH=$(CURDIR) $(VENV)-$(ENGINE)/bin/python -c "from privfair.cli import main; main()" \
	  demo --algorithm $(ALGORITHM) --engine $(ENGINE) --out demo
else
demo: $(VENV)/.with-demo
	$(BIN)/privfair demo --algorithm $(ALGORITHM) --engine $(ENGINE) --out demo
endif

## test: the default suite
test: $(VENV)/.with-test
	$(PYTEST) -n 2

## test-full: every test, slow ones included, with coverage
# Every test once: the default ones, which alone must reach the coverage of pyproject.toml, then the slow ones.
test-full: $(VENV)/.with-test
	$(PYTEST) -n 2 --cov
	$(PYTEST) -n 2 -m slow

## flower, nvflare: an environment with that engine
# Flower wants older versions of some packages: an environment of its own, laid over the tested one; so has NVFlare.
flower: $(VENV)-flower/.done
nvflare: $(VENV)-nvflare/.done

## soak: the suite again and again, to find what fails by chance
# Does anything ever fail by chance? The default suite 5 times, the tests of true noise 200 times.
soak: $(VENV)/.with-test
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak

## experiments: one page of docs/experiments again (NAME=fair-plugin)
# NAME=fair-plugin runs only the splits whose rows are missing; OPTIONS=--help lists its options.
experiments: $(VENV)/.with-test
	PYTHONPATH=docs/experiments $(BIN)/python -m privfair_experiments $(NAME) $(OPTIONS)

## bench: every benchmark, each writes its section of docs/benchmarks.md
bench: $(VENV)/.with-bench
	$(BIN)/python -m tests.benchmarks

## lint: ruff, mypy --strict (packages and experiments), import contracts
lint: $(VENV)/.with-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=docs/experiments $(BIN)/mypy -p privfair_experiments
	$(BIN)/lint-imports

## house: the rules of the house that no tool knows
house: $(VENV)/.with-test
	$(PYTEST) -q -p no:cacheprovider tests/architecture

## docs: the site in build/site, offline; a broken link is an error
docs: $(VENV)/.with-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

## package: source archive, wheel, bill of materials and hashes in dist/, checked as a package index checks them
package: $(VENV)/.with-test
	.ci/package $(BIN)/python

## clean: remove the environments and what was built
clean:
	rm -rf $(VENV) $(VENV)-flower $(VENV)-nvflare demo build dist *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)-flower/.done: ENGINE_PACKAGE := flwr>=1.41,<1.43
$(VENV)-nvflare/.done: ENGINE_PACKAGE := nvflare>=2.9,<2.10
$(VENV)-%/.done: $(VENV)/.with-test constraints-%.txt
	rm -rf $(@D)
	$(BIN)/python -m venv --without-pip $(@D)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > \
	  $$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/tested.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-$*.txt "$(ENGINE_PACKAGE)"
	@touch $@

$(VENV)/.with-demo: EXTRAS := train,data,plot,audit
$(VENV)/.with-test: EXTRAS := test
$(VENV)/.with-bench: EXTRAS := test,bench
$(VENV)/.with-demo $(VENV)/.with-test $(VENV)/.with-bench: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing privfair[$(EXTRAS)] into $(VENV) (pinned by constraints.txt)"
	$(PIP) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(PIP) -e ".[$(EXTRAS)]"
	@touch $@
