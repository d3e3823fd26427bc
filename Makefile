# The commands of the project; each installs what it needs and says what it does.
.PHONY: build run test bench format lint deps clean

build: deps
	@cmake --preset cpu $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache) > build.log 2>&1 || { cat build.log; rm -f build.log; exit 1; }
	@rm -f build.log
	@cmake --build --preset cpu

deps:
	@tools/install_deps.sh

run: build
	build/replayssm generate -p "The SELECT statement" -n 128
	build/replayssm generate -p "The SELECT statement" -n 128 --draft ngram

test: build
	ctest --preset cpu -j 2

bench: build
	build/replayssm bench

format: deps
	@tools/format.sh

lint: build
	@tools/lint.sh

clean:
	rm -rf build
