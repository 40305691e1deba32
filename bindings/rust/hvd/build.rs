//! Tests and examples find the library where hvd-sys found it, and hvdrun beside it.
fn main() {
    println!("cargo:rerun-if-env-changed=DEP_HVD_LIB_DIR");
    let directory = std::env::var("DEP_HVD_LIB_DIR").unwrap_or_default();
    if !directory.is_empty() {
        for kind in ["tests", "examples"] {
            println!("cargo:rustc-link-arg-{kind}=-Wl,-rpath,{directory}");
        }
    }
    println!("cargo:rustc-env=HVD_LIB_DIR_FOUND={directory}");
}
