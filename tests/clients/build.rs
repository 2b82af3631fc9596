//! Tells the tests where the daemon is. Cargo does that only for tests of the daemon's own package.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // target/PROFILE/build/PACKAGE/out
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let profile = out.ancestors().nth(3).expect("a folder of cargo");
    println!("cargo:rustc-env=CARGO_BIN_EXE_nodelb={}", profile.join("nodelb").display());
}
