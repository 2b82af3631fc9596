//! Non-interference between objects, with daemons that have their maps in memory: every restart is a reboot.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::NODELB;
use crate::interference::{Place, play_all};

/// The number of daemons at the same time. They wait most of the time.
const DAEMONS: u32 = 2;

struct InMemory(tempfile::TempDir);

impl Place for InMemory {
    fn directory(&self, run: &str) -> PathBuf {
        self.0.path().join(run)
    }

    fn command(&self) -> Command {
        Command::new(NODELB)
    }

    fn sections(&self) -> String {
        "[datapath]\nmode = \"memory\"\n".into()
    }

    fn keeps_maps(&self) -> bool {
        false
    }

    /// The addresses of the backends may be those of other machines.
    fn may_check(&self) -> bool {
        false
    }

    fn reboot(&self, _config: &Path) {}
}

#[test]
fn what_happens_to_one_service_changes_no_other_in_the_daemon() {
    let place = InMemory(tempfile::tempdir().expect("a directory"));
    play_all(&place, 400, DAEMONS);
}
