//! Credentials that systemd passes to the daemon at start (`LoadCredential=`, systemd.exec(5)). Resolves
//! `credential:NAME` in the configuration, and describes the remedy if the credential does not exist.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The prefix of a credential name in the configuration.
const PREFIX: &str = "credential:";

/// The directory where systemd keeps the unit's credentials while it runs. A command that root runs uses it.
const OF_UNIT: &str = "/run/credentials/nodelb.service";

/// The maximum length of a name, like that of a file name.
const MAX_NAME: usize = 255;

/// The name of the credential, if the path refers to one.
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

/// The file that a path in the configuration refers to.
pub fn locate(path: PathBuf) -> PathBuf {
    Place::of_process().locate(path)
}

/// The name of the credential, if the file belongs to the unit and this process has no access to it; it cannot be
/// checked here.
pub fn out_of_reach(file: &Path) -> Option<&str> {
    let name = file.file_name()?.to_str()?;
    let is_elsewhere = Place::of_process() == Place::Elsewhere && file.parent() == Some(Path::new(OF_UNIT));
    (is_elsewhere && File::open(file).is_err()).then_some(name)
}

/// The remedy for a file that cannot be read, if it is a credential.
pub(super) fn remedy(file: &Path, error: &io::Error) -> Option<String> {
    Place::of_process().remedy(file, error)
}

/// Whether systemd has started this process with credentials.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// Yes, in this directory.
    Own(PathBuf),
    /// No; the credentials may be those of the unit.
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
                "systemd has not passed the credential {name}: write it to /etc/credstore/{name}, or set \
                 LoadCredential={name}:/PATH in the unit (systemctl edit nodelb), then restart nodelb"
            )),
            (Self::Elsewhere, io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => Some(format!(
                "{PREFIX}{name} is passed by systemd, which has not started this process: start nodelb.service, or set \
                 the path of a file instead"
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "tests/credstore.rs"]
mod tests;
