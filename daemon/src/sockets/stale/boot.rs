//! Whether the machine has been booted since nodelb last ran. The state directory contains the kernel's id of the boot:
//! without an id it is a first start, with the same id a restart. A damaged file shows neither, and is replaced.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nodelb_host::clock::boot_id;
use nodelb_host::state_file;
use nodelb_host::threads::run_within;

const FILE: &str = "boot-id";

/// More bytes than the kernel's text has.
const MOST: u64 = 64;

/// How long access to the state directory may take.
const LIMIT: Duration = Duration::from_secs(2);

/// Whether nodelb has run before, in another boot than this one. Stores the current id. Returns false if that is not
/// known.
pub(super) async fn is_another(directory: PathBuf) -> bool {
    run_within(LIMIT, move || remember(&directory, &boot_id()?)).await.unwrap_or(false)
}

/// Stores the id of this boot; returns whether a different one was stored before. May block.
fn remember(directory: &Path, boot: &str) -> io::Result<bool> {
    let path = directory.join(FILE);
    let before = read(&path).unwrap_or_else(|_damaged| {
        // A directory could not be replaced by a file; of anything else this changes nothing.
        _ = fs::rename(&path, directory.join("boot-id.corrupt"));
        None
    });
    if before.as_deref() == Some(boot) {
        return Ok(false);
    }
    state_file::replace(&path, &directory.join("boot-id.new"), |mut file| writeln!(file, "{boot}"))?;
    Ok(before.is_some())
}

/// The stored id; `None` if there is no file.
fn read(path: &Path) -> io::Result<Option<String>> {
    let mut text = String::new();
    match state_file::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?.take(MOST).read_to_string(&mut text)?,
    };
    let id = text.trim();
    let is_id = id.len() == "01234567-89ab-cdef-0123-456789abcdef".len()
        && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if is_id { Ok(Some(id.to_owned())) } else { Err(ErrorKind::InvalidData.into()) }
}

#[cfg(test)]
#[path = "tests/boot.rs"]
mod tests;
