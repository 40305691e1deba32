//! Finds libhvd: the file or directory that HVD_LIBRARY names, and then no other; else by pkg-config; else in
//! the directory that HVD_LIB_DIR names. With feature `vendored` it is built from the checkout that this
//! crate lies in, unless HVD_LIBRARY names one.
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the library is, as pkg-config knows it.
fn pkg_config() -> Result<PathBuf, String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let output = Command::new(&program)
        .args(["--variable=libdir", "hvd"])
        .output()
        .map_err(|e| format!("{program}: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_string());
    }
    // It writes for a shell: a space in a path has a backslash before it.
    match String::from_utf8_lossy(&output.stdout).trim() {
        "" => Err("its hvd.pc has no variable libdir".into()),
        text => Ok(PathBuf::from(text.replace("\\ ", " "))),
    }
}

/// The directory of what HVD_LIBRARY names. The linker looks for libhvd.so, programs for libhvd.so.1: a
/// package of run-time files alone has no more than the second, so the first is made in OUT_DIR.
fn named(library: &Path) -> PathBuf {
    let file = if library.is_dir() { library.join("libhvd.so.1") } else { library.to_path_buf() };
    let file = file.canonicalize().unwrap_or_else(|e| {
        panic!("HVD_LIBRARY is '{}': {e}. Expected libhvd.so.1 or its directory", library.display())
    });
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let link = out.join("libhvd.so");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(&file, &link).unwrap_or_else(|e| panic!("{}: {e}", link.display()));
    println!("cargo:rustc-link-search=native={}", out.display());
    file.parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Runs a program; what it prints is shown if it fails.
fn run(command: &mut Command) {
    let shown = format!("{command:?}");
    let output = command.output().unwrap_or_else(|e| panic!("{shown}: {e}"));
    assert!(
        output.status.success(),
        "{shown}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Builds the library, its modules and hvdrun from the checkout, by CMake in OUT_DIR; the directory of the
/// library.
fn built() -> PathBuf {
    let variable = |name| PathBuf::from(env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}")));
    let here = variable("CARGO_MANIFEST_DIR");
    let checkout = here.join("../../..");
    let header = checkout.join("include/hvd/hvd.h");
    assert!(
        header.is_file(),
        "feature vendored builds libhvd from its sources, and there is no {}: expected this crate to lie in a checkout \
         (a path or git dependency)",
        header.display()
    );
    for part in ["CMakeLists.txt", "cmake", "include", "src"] {
        println!("cargo:rerun-if-changed={}", checkout.join(part).display());
    }
    let prefix = variable("OUT_DIR").join("libhvd");
    let build = prefix.join("build");
    let cmake = env::var("CMAKE").unwrap_or_else(|_| "cmake".into());
    // Optimizing it as a whole takes as long again as all the rest.
    let whole = if env::var("PROFILE").is_ok_and(|profile| profile == "release") { "ON" } else { "OFF" };
    run(Command::new(&cmake)
        .arg("-S")
        .arg(&checkout)
        .arg("-B")
        .arg(&build)
        .arg(format!("-DHVD_LTO={whole}"))
        .args([
            "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_INSTALL_LIBDIR=lib",
            "-DHVD_SEARCH_PREFIX=OFF", // its modules lie beside it
            "-DHVD_COMPILER_CACHE=ON",
            "-DHVD_BUILD_TESTS=OFF",
            "-DHVD_BUILD_EXAMPLES=OFF",
            "-DHVD_BUILD_BENCH=OFF",
        ]));
    let jobs = env::var("NUM_JOBS").unwrap_or_else(|_| "1".into());
    run(Command::new(&cmake).arg("--build").arg(&build).args(["--target", "runtime", "--parallel", &jobs]));
    run(Command::new(&cmake).arg("--install").arg(&build).arg("--prefix").arg(&prefix));
    prefix.join("lib")
}

fn main() {
    for name in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "HVD_LIB_DIR", "HVD_LIBRARY", "CMAKE"]
    {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let directory = if let Some(library) = env::var_os("HVD_LIBRARY").filter(|name| !name.is_empty()) {
        named(Path::new(&library))
    } else if env::var_os("CARGO_FEATURE_VENDORED").is_some() {
        built()
    } else {
        match (pkg_config(), env::var_os("HVD_LIB_DIR")) {
            (Ok(directory), _) => directory,
            (Err(_), Some(directory)) => PathBuf::from(directory),
            (Err(why), None) => panic!(
                "libhvd was not found. pkg-config said: {why}\nExpected hvd.pc in PKG_CONFIG_PATH, HVD_LIBRARY to name \
                 libhvd.so.1 or its directory, or feature vendored, which builds the library"
            ),
        }
    };
    println!("cargo:rustc-link-lib=dylib=hvd");
    let directory = directory.canonicalize().unwrap_or(directory);
    println!("cargo:rustc-link-search=native={}", directory.display());
    println!("cargo:lib_dir={}", directory.display());
}
