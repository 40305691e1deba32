# CMake's toolchain for wheels: GCC, against the directory that scripts/sysroot.sh makes. -DHVD_SYSROOT names
# it; with
# -DHVD_SYSROOT_PROCESSOR=aarch64 it compiles for another processor than this machine's.
set(HVD_SYSROOT_PROCESSOR "x86_64" CACHE STRING "The processor that is compiled for: x86_64 or aarch64")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HVD_SYSROOT HVD_SYSROOT_PROCESSOR)
if(NOT EXISTS "${HVD_SYSROOT}/.ready")
  message(FATAL_ERROR "HVD_SYSROOT is '${HVD_SYSROOT}': expected a directory that scripts/sysroot.sh has made")
endif()
set(triplet ${HVD_SYSROOT_PROCESSOR}-linux-gnu)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${HVD_SYSROOT_PROCESSOR})
set(CMAKE_LIBRARY_ARCHITECTURE ${triplet})
set(CMAKE_C_COMPILER ${triplet}-gcc)
set(CMAKE_CXX_COMPILER ${triplet}-g++)
set(CMAKE_SYSROOT ${HVD_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${HVD_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${HVD_SYSROOT}/usr/lib/${triplet}/pkgconfig:${HVD_SYSROOT}/usr/share/pkgconfig)

# A cross compiler has a newer C library's headers of its own, which come first: it is told every directory.
if(NOT HVD_SYSROOT_PROCESSOR STREQUAL CMAKE_HOST_SYSTEM_PROCESSOR)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -dumpversion OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(cxx /usr/${triplet}/include/c++/${version})
  set(c_headers "-isystem /usr/lib/gcc-cross/${triplet}/${version}/include -isystem ${HVD_SYSROOT}/usr/include/${triplet}")
  string(APPEND c_headers " -isystem ${HVD_SYSROOT}/usr/include")
  set(CMAKE_C_FLAGS_INIT "-nostdinc ${c_headers}")
  set(CMAKE_CXX_FLAGS_INIT "-nostdinc -nostdinc++ -isystem ${cxx} -isystem ${cxx}/${triplet} ${c_headers}")
  set(CMAKE_CROSSCOMPILING_EMULATOR qemu-${HVD_SYSROOT_PROCESSOR}-static -L ${HVD_SYSROOT})
endif()

# The compiler looks there before it looks among this machine's libraries.
set(libraries "-B${HVD_SYSROOT}/usr/lib/${triplet} -L${HVD_SYSROOT}/lib/${triplet} -Wl,--as-needed")
# Threads are in a library of their own before glibc 2.34; libstdc++ asks for them, and comes after all
# others. CMake's look for that library is made with these flags, so it finds that none is needed.
string(APPEND libraries " -Wl,--push-state,--no-as-needed,-lpthread,--pop-state")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${libraries}")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "${libraries}")
# Programs bring the compiler's libstdc++, as the library and its modules do: the systems' are older.
set(CMAKE_EXE_LINKER_FLAGS_INIT "${libraries} -static-libstdc++")
# Before libstdc++ in the line, and asked for by it.
set(CMAKE_CXX_STANDARD_LIBRARIES "-Wl,-u,__libc_single_threaded -Wl,-u,arc4random -lhvd_sysroot")
# libgcc's unwinder is the system's: this compiler's own asks the C library for _dl_find_object, of glibc
# 2.35.
set(HVD_STATIC_RUNTIME -static-libstdc++)
set(OPENSSL_USE_STATIC_LIBS TRUE)
