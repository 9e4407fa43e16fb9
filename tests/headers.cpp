// Compiles the headers of all suites (tests/CMakeLists.txt); it has no test of its own.
