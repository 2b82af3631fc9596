//! `docs/kernels.md`.

use nodelb_datapath::features::{OPTIONAL, Optional, REQUIRED, Required, Since};
use nodelb_host::messages;

use crate::generated;

/// Kernels that nodelb is tested on.
const KERNELS: [(Since, &str); 3] =
    [(Since(6, 1), "Debian 12"), (Since(6, 12), "Debian 13, and Debian 12 from its backports"), (Since(6, 18), "")];

const INTRODUCTION: &str = "\
# Kernels

Generated from `daemon/datapath/src/features.rs`: `UPDATE=1 cargo test -p nodelb --lib kernels` rewrites it.

nodelb requires Linux 6.1 or newer. It detects each feature by trying it and ignores the kernel's version, because distributions
backport features to older kernels and build newer kernels without some. At each start nodelb logs the features that it found
and the consequences of each missing one. `nodelb status` counts the missing ones, and `nodelb status -o wide` shows them. The lines of the journal:

    journalctl -u nodelb MESSAGE_ID=@ID@

## Optional features

| kernel feature | since | built with | with it | without it | detection |
|---|---|---|---|---|---|
";

const BETWEEN: &str = "
## Missing features by kernel

This table applies to kernels of kernel.org that are built with the options above, such as Debian's.

| kernel | missing optional features |
|---|---|
";

const REQUIREMENTS: &str = "
## Required features

If one of these is missing, `nodelb run` exits with status 77 and does not change how connections are translated. The error
names the missing feature; where loading, attaching or pinning is tried, it contains the kernel's message. A bpffs and a cgroup v2
hierarchy must be mounted, too.

| required | since | built with | detection |
|---|---|---|---|
";

const ACCOUNTING: &str = "
The kernel charges maps to nodelb's cgroup since Linux 5.11, so RLIMIT_MEMLOCK does not apply.
";

/// The names of the features that are newer than a kernel.
fn after(kernel: Since, rows: impl Iterator<Item = (&'static str, Since)>) -> String {
    let names: Vec<&str> = rows.filter(|(_, since)| *since > kernel).map(|(name, _)| name).collect();
    if names.is_empty() { "nothing".into() } else { names.join("; ") }
}

/// `docs/kernels.md` is generated from the tables. `UPDATE=1` rewrites it.
#[test]
fn the_document_of_kernels_is_the_table() {
    let mut text = INTRODUCTION.replace("@ID@", &messages::KERNEL_HAS.to_string());
    for Optional { name, since, config, used_for, without, probe, .. } in OPTIONAL {
        text += &format!("| {name} | {since} | {config} | {used_for} | {without} | {probe} |\n");
    }
    text += BETWEEN;
    for (kernel, where_) in KERNELS {
        let missing = after(kernel, OPTIONAL.iter().map(|row| (row.name, row.since)));
        let condition = if where_.is_empty() { String::new() } else { format!(" ({where_})") };
        text += &format!("| {kernel}{condition} | {missing} |\n");
    }
    text += REQUIREMENTS;
    for required in &REQUIRED {
        let Required { name, since, config, .. } = required;
        text += &format!("| {name} | {since} | {config} | {} |\n", required.probe());
    }
    text += ACCOUNTING;
    generated::is_whole_file("docs/kernels.md", &text);
}
