//! `docs/kernels.md`.

use nodelb_core::messages;
use nodelb_datapath::features::{OPTIONAL, Optional, REQUIRED, Required, Since, UNUSED, Unused};

use crate::generated;

/// Kernels on which nodelb is tested.
const KERNELS: [(Since, &str); 3] =
    [(Since(6, 1), "Debian 12"), (Since(6, 12), "Debian 13, and Debian 12 from its backports"), (Since(6, 18), "")];

const INTRODUCTION: &str = "\
# Kernels

Generated from `daemon/datapath/src/features.rs`: `UPDATE=1 cargo test -p nodelb --lib kernels` rewrites it.

nodelb needs Linux 6.1 or newer. It never looks at the kernel's version, but tries out what there is: what a distribution
has brought to an older kernel is used, and what a newer one was built without is not. What was found, and what follows from
each thing that is missing, is a line in the journal at each start, and the row `kernel` of `nodelb status`:

    journalctl -u nodelb MESSAGE_ID=@ID@

## What nodelb uses where it is there

| kernel feature | since | built with | with it | without it | found out by |
|---|---|---|---|---|---|
";

const BETWEEN: &str = "
## What is missing where

By kernel.org's kernels, built with the options above; Debian's are.

| kernel | of the above is missing | not there yet, and not used |
|---|---|---|
";

const REQUIREMENTS: &str = "
## What nodelb cannot do without

Where something of this is missing, `nodelb run` ends with exit status 77, and connections are left as they are. What is looked
for is named; where loading, attaching or pinning fails, the message is what the kernel says. A bpffs and a cgroup v2 hierarchy
must be mounted, too.

| required | since | built with | found out by |
|---|---|---|---|
";

const NOT_USED: &str = "
## What newer kernels have and nodelb does not use

| kernel feature | since | what nodelb does, on every kernel |
|---|---|---|
";

const ACCOUNTING: &str = "
Maps are charged to nodelb's cgroup since Linux 5.11; there is no RLIMIT_MEMLOCK to be raised.
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
        let unused = after(kernel, UNUSED.iter().map(|row| (row.name, row.since)));
        let whose = if where_.is_empty() { String::new() } else { format!(" ({where_})") };
        text += &format!("| {kernel}{whose} | {missing} | {unused} |\n");
    }
    text += REQUIREMENTS;
    for required in &REQUIRED {
        let Required { name, since, config, .. } = required;
        text += &format!("| {name} | {since} | {config} | {} |\n", required.probe());
    }
    text += NOT_USED;
    for Unused { name, since, instead } in UNUSED {
        text += &format!("| {name} | {since} | {instead} |\n");
    }
    text += ACCOUNTING;
    generated::is_whole_file("docs/kernels.md", &text);
}
