//! Whether the machine was booted since nodelb ran here last. The state directory remembers the kernel's name for the boot:
//! one that was never written means a first start, the same one a restart.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nodelb_kube::state;
use tokio::time::timeout;

/// In the state directory.
const FILE: &str = "boot-id";

/// Where the kernel says which boot this is.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// More than the kernel's text has.
const MOST: u64 = 64;

/// How long the state directory may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether nodelb has run before, in another boot than this one, which is remembered now. What cannot be read or written
/// means that it has not.
pub(super) async fn is_another(directory: PathBuf) -> bool {
    let asking = state::aside(move || remember(&directory, fs::read_to_string(BOOT)?.trim()));
    matches!(timeout(PATIENCE, asking).await, Ok(Ok(true)))
}

/// Remembers this boot; whether another one was remembered. May block.
fn remember(directory: &Path, boot: &str) -> io::Result<bool> {
    let path = directory.join(FILE);
    let before = match state::open(&path) {
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
    state::replace(&path, &directory.join("boot-id.new"), |mut file| writeln!(file, "{boot}"))?;
    Ok(before.is_some())
}

#[cfg(test)]
#[path = "tests/boot.rs"]
mod tests;
