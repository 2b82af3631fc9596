//! Compiles the BPF objects and generates their Rust skeletons. `CLANG` names another compiler than `clang`.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let bpf = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../bpf");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for entry in std::fs::read_dir(&bpf)? {
        println!("cargo::rerun-if-changed={}", entry?.path().display());
    }
    println!("cargo::rerun-if-env-changed=CLANG");

    // v3: 32-bit arithmetic and atomic exchanges, in every kernel since 5.12.
    let mut args: Vec<OsString> = ["-Wall", "-Wextra", "-Werror", "-mcpu=v3"].map(OsString::from).to_vec();
    // The line numbers of the programs name their files: the same ones wherever nodelb is built.
    args.push(format!("-ffile-prefix-map={}=/nodelb/bpf", bpf.display()).into());
    // Debian keeps <asm/types.h> where clang does not look when the target is bpf.
    let multiarch = format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    if Path::new(&multiarch).is_dir() {
        args.push(format!("-I{multiarch}").into());
    }
    for object in ["sock", "flows", "packet", "xdp", "sweep", "chain", "order"] {
        let mut builder = SkeletonBuilder::new();
        if let Some(clang) = env::var_os("CLANG") {
            builder.clang(clang);
        }
        let source = bpf.join(format!("{object}.bpf.c"));
        builder.source(source).clang_args(&args).build_and_generate(out.join(format!("{object}.skel.rs")))?;
        if object == "sock" {
            args.push("-DWITHOUT_BTF".into());
            builder.clang_args(&args).obj(out.join("sock_without_btf.bpf.o")).build()?;
            args.pop();
        }
        // For tests of upgrades.
        if ["sock", "packet", "xdp"].contains(&object) {
            args.push("-DNEXT_LAYOUT".into());
            builder.clang_args(&args).obj(out.join(format!("{object}_next.bpf.o"))).build()?;
            args.pop();
            choose_object(&out.join(format!("{object}.skel.rs")))?;
        }
        replace(&out.join(format!("{object}.skel.rs")), "    static DATA:", "    pub(crate) static DATA:")?;
    }
    Ok(())
}

/// Makes the skeleton open the object that `choose()` of `src/skeleton.rs` selects. All have the same maps, programs and
/// constants.
fn choose_object(skeleton: &Path) -> Result<(), Box<dyn Error>> {
    replace(skeleton, "ObjectSkeletonConfigBuilder::new(&DATA)", "ObjectSkeletonConfigBuilder::new(choose(&DATA))")
}

fn replace(skeleton: &Path, from: &str, to: &str) -> Result<(), Box<dyn Error>> {
    let text = std::fs::read_to_string(skeleton)?;
    let (before, after) = text.split_once(from).ok_or("libbpf-cargo's form")?;
    Ok(std::fs::write(skeleton, format!("{before}{to}{after}"))?)
}
