//! Credentials that systemd hands over when it starts the daemon (`LoadCredential=`, systemd.exec(5)): what
//! `credential:NAME` in the configuration stands for, and what to do where there is none.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// What the name of a credential comes after.
const PREFIX: &str = "credential:";

/// Where systemd keeps those of the unit while it runs: for what root starts by hand.
const OF_UNIT: &str = "/run/credentials/nodelb.service";

/// The longest name, as of any file.
const MAX_NAME: usize = 255;

/// The name of the credential, if it is one.
///
/// # Errors
/// When what stands there can be no name of a credential.
pub fn name_of(path: &Path) -> Result<Option<&str>, String> {
    let Some(name) = path.to_str().and_then(|text| text.strip_prefix(PREFIX)) else { return Ok(None) };
    let is_part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    match name {
        "" | "." | ".." => {}
        _ if name.len() > MAX_NAME || !name.bytes().all(is_part) => {}
        _ => return Ok(Some(name)),
    }
    Err(format!("`{PREFIX}{name}` names no credential: letters, digits, `-`, `_` and `.`, at most {MAX_NAME} of them"))
}

/// Where the file is that this path of the configuration means.
pub fn locate(path: PathBuf) -> PathBuf {
    Place::of_process().locate(path)
}

/// The name of the credential that this file is, if it is none of this process's: it cannot be judged from here.
pub fn out_of_reach(file: &Path) -> Option<&str> {
    let name = file.file_name()?.to_str()?;
    let is_elsewhere = Place::of_process() == Place::Elsewhere && file.parent() == Some(Path::new(OF_UNIT));
    (is_elsewhere && File::open(file).is_err()).then_some(name)
}

/// What to do about a file that cannot be read, if it is a credential.
pub(super) fn remedy(file: &Path, error: &io::Error) -> Option<String> {
    Place::of_process().remedy(file, error)
}

/// Whether systemd has started this process with credentials.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// Here they are.
    Own(PathBuf),
    /// It has not.
    Elsewhere,
}

impl Place {
    fn of_process() -> Self {
        match std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from).filter(|path| path.is_absolute()) {
            Some(directory) => Self::Own(directory),
            None => Self::Elsewhere,
        }
    }

    fn directory(&self) -> &Path {
        match self {
            Self::Own(directory) => directory,
            Self::Elsewhere => Path::new(OF_UNIT),
        }
    }

    fn locate(&self, path: PathBuf) -> PathBuf {
        match name_of(&path) {
            Ok(Some(name)) => self.directory().join(name),
            _ => path,
        }
    }

    fn remedy(&self, file: &Path, error: &io::Error) -> Option<String> {
        let name = file.file_name()?.to_str().filter(|_| file.parent() == Some(self.directory()))?;
        match (self, error.kind()) {
            (Self::Own(_), io::ErrorKind::NotFound) => Some(format!(
                "systemd has handed over no credential {name}: write it to /etc/credstore/{name}, or let the unit say \
                 LoadCredential={name}:/PATH (systemctl edit nodelb), then restart nodelb"
            )),
            (Self::Elsewhere, io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => Some(format!(
                "{PREFIX}{name} is handed over by systemd, which has not started this process: start nodelb.service, or \
                 set the path of a file in its place"
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
