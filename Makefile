# The commands of the project; each installs what it needs and says what it does.
.PHONY: configure build build-all run test bench format lint deps clean

configure: deps
	@cmake --preset cpu $$(command -v ccache > /dev/null && echo -DCMAKE_CXX_COMPILER_LAUNCHER=ccache) > build.log 2>&1 || { cat build.log; rm -f build.log; exit 1; }
	@rm -f build.log

# The command line and the libraries.
build: configure
	@cmake --build --preset cpu --target replayssm replayssm_shared replayssm_static

# Tests and benches too.
build-all: configure
	@cmake --build --preset cpu

deps:
	@tools/install_deps.sh

PROMPT = The purpose of this chapter is to
SAMPLING = -n 120 --temperature 0.7 --top-p 0.9 --seed 1

run: build
	@echo "== the GDN demo model, standard decoding by replay"
	build/replayssm generate -p "$(PROMPT)" $(SAMPLING)
	@echo "== the same text, speculative: a draft model proposes, the target verifies"
	build/replayssm generate -p "$(PROMPT)" $(SAMPLING) --draft models/demo-draft

test: build-all
	ctest --preset cpu -j 2

bench: configure
	@cmake --build --preset cpu --target replayssm-bench
	build/replayssm-bench

format: deps
	@tools/format.sh

lint: deps
	@tools/lint.sh

clean:
	rm -rf build
