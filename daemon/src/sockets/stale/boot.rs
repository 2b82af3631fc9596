//! Whether the machine has been booted since nodelb last ran. The state directory contains the kernel's id of the boot:
//! no id handles a first start, the same id a restart.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nodelb_kube::state_file;
use nodelb_kube::threads::run_within;

/// Name of the file in the state directory.
const FILE: &str = "boot-id";

/// The kernel's file with the id of the current boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// More bytes than the kernel's text has.
const MOST: u64 = 64;

/// How long access to the state directory may take.
const LIMIT: Duration = Duration::from_secs(2);

/// Whether nodelb has run before, in another boot than this one. Stores the current id. Returns false if a file cannot
/// be read or written.
pub(super) async fn is_another(directory: PathBuf) -> bool {
    run_within(LIMIT, move || remember(&directory, fs::read_to_string(BOOT)?.trim())).await.unwrap_or(false)
}

/// Stores the id of this boot; returns whether a different one was stored before. May block.
fn remember(directory: &Path, boot: &str) -> io::Result<bool> {
    let path = directory.join(FILE);
    let before = match state_file::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        file => {
            let mut text = String::new();
            file?.take(MOST).read_to_string(&mut text)?;
            Some(text)
        }
    };
    if before.as_deref().map(str::trim) == Some(boot) {
        return Ok(false);
    }
    state_file::replace(&path, &directory.join("boot-id.new"), |mut file| writeln!(file, "{boot}"))?;
    Ok(before.is_some())
}

#[cfg(test)]
#[path = "tests/boot.rs"]
mod tests;
