//! Finds libhvd: the file or directory that HVD_LIBRARY names, and then no other; else by pkg-config; else in
//! the directory that HVD_LIB_DIR names.
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

fn main() {
    for name in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "HVD_LIB_DIR", "HVD_LIBRARY"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let directory = if let Some(library) = env::var_os("HVD_LIBRARY").filter(|name| !name.is_empty()) {
        named(Path::new(&library))
    } else {
        match (pkg_config(), env::var_os("HVD_LIB_DIR")) {
            (Ok(directory), _) => directory,
            (Err(_), Some(directory)) => PathBuf::from(directory),
            (Err(why), None) => panic!(
                "libhvd was not found. pkg-config said: {why}\nExpected hvd.pc in PKG_CONFIG_PATH, or HVD_LIBRARY to name \
                 libhvd.so.1 or its directory"
            ),
        }
    };
    println!("cargo:rustc-link-lib=dylib=hvd");
    let directory = directory.canonicalize().unwrap_or(directory);
    println!("cargo:rustc-link-search=native={}", directory.display());
    println!("cargo:lib_dir={}", directory.display());
}
