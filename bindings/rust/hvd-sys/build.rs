//! Finds libhvd: by pkg-config, else in the directory that HVD_LIB_DIR names.
use std::env;
use std::path::PathBuf;
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

fn main() {
    for name in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "HVD_LIB_DIR"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let directory = match pkg_config() {
        Ok(directory) => directory,
        Err(why) => match env::var_os("HVD_LIB_DIR") {
            Some(directory) => PathBuf::from(directory),
            None => panic!(
                "libhvd was not found. pkg-config said: {why}\nExpected hvd.pc in PKG_CONFIG_PATH, or libhvd.so \
                 in the directory that HVD_LIB_DIR names"
            ),
        },
    };
    println!("cargo:rustc-link-lib=dylib=hvd");
    let directory = directory.canonicalize().unwrap_or(directory);
    println!("cargo:rustc-link-search=native={}", directory.display());
    println!("cargo:lib_dir={}", directory.display());
}
