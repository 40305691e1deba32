# Sources that clang-format keeps, as git's patterns, for scripts/lint.sh and the hooks. Public headers are
# not among them: their comments stand in columns, and several enumerators on a line, for readers. Nor is what
# is recorded as it was, and what scripts/api/make.py makes.
# shellcheck disable=SC2034  # used where this is sourced
formatted=('src/*.cc' 'src/*.h' 'tests/*.cc' 'tests/*.c' 'tests/*.h' 'examples/*.cc' 'examples/*.c' 'examples/*.h'
           ':!tests/abi/recorded' ':!tests/abi/layout.c')
