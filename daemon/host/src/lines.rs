//! A state file of lines: what has changed is appended, and everything is written again when the file is twice as long. A
//! line that is cut off costs only itself.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use crate::state_file::{append, replace};

/// A file up to this length in bytes is not written again because it is twice as long.
const SHORT: u64 = 64 << 10;

/// What the file has, in bytes: when everything was written, and now. Both are 0 if that is not known.
#[derive(Debug, Default)]
pub struct Lines {
    whole: u64,
    length: u64,
}

impl Lines {
    /// Whether the file has what was written last, as far as this process knows.
    pub fn is_written(&self) -> bool {
        self.length > 0
    }

    /// Writes lines to the file: those that have `changed` since the last call, or everything. May block.
    ///
    /// # Errors
    /// The file may have the lines, the last one in part. The next call writes everything.
    pub fn write(
        &mut self,
        path: &Path,
        changed: Option<&[u8]>,
        everything: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let Self { whole, length } = std::mem::take(self);
        if let Some(changed) = changed.filter(|_| length > 0) {
            let after = length + changed.len() as u64;
            if after <= 2 * whole.max(SHORT) && append_at(path, length, changed)? {
                *self = Self { whole, length: after };
                return Ok(());
            }
        }
        let mut length = 0;
        replace(path, &path.with_extension("new"), |file| {
            let mut writer = BufWriter::with_capacity(64 << 10, file);
            everything(&mut writer)?;
            writer.flush()?;
            length = file.metadata()?.len();
            Ok(())
        })?;
        *self = Self { whole: length, length };
        Ok(())
    }
}

/// Adds a line, which is the value as JSON.
pub fn push<W: Write + ?Sized>(lines: &mut W, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *lines, value)?;
    lines.write_all(b"\n")
}

/// Appends to the file, unless it has another length: another program has changed or removed it.
fn append_at(path: &Path, length: u64, lines: &[u8]) -> io::Result<bool> {
    let mut file = append(path)?;
    if file.metadata()?.len() != length {
        return Ok(false);
    }
    file.write_all(lines)?;
    file.sync_data()?;
    Ok(true)
}

#[cfg(test)]
#[path = "tests/lines.rs"]
mod tests;
