use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use tempfile::TempDir;

use super::super::run::tests::drained;
use super::super::state_file::tests::load;
use super::*;

/// Longer than a write takes on a busy machine. Tests pause the clock while one hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A file system that is frozen until [`Disk::thaw`].
pub(in crate::drains) struct Disk {
    pub(in crate::drains) directory: TempDir,
    thaw: mpsc::Sender<()>,
    /// The number of writes that have begun, and of those that are under way.
    counts: Arc<[AtomicUsize; 2]>,
}

impl Disk {
    /// The first write hangs. If it `is_late`, it hangs when nothing can stop it any more.
    pub(in crate::drains) fn frozen(written: All, is_late: bool) -> (Self, Writer) {
        let directory = TempDir::new().expect("a directory");
        let path = state_file::path(directory.path());
        state_file::write(&path, &written, &AtomicBool::new(false)).expect("written");
        let (thaw, frozen) = mpsc::channel();
        let (frozen, counts) = (Mutex::new(frozen), Arc::<[AtomicUsize; 2]>::default());
        let counted = Arc::clone(&counts);
        let mut writer = Writer::with(path, LIMIT, move |path, all, is_withdrawn| {
            let [begun, under_way] = &*counted;
            assert_eq!(under_way.fetch_add(1, Ordering::SeqCst), 0, "one write at a time");
            if begun.fetch_add(1, Ordering::SeqCst) == 0 {
                frozen.lock().expect("no panic").recv().expect("a thaw");
            }
            let written = match is_late {
                true => state_file::write(path, all, &AtomicBool::new(false)),
                false => state_file::write(path, all, is_withdrawn),
            };
            under_way.fetch_sub(1, Ordering::SeqCst);
            written
        });
        writer.note_read(&written);
        (Self { directory, thaw, counts }, writer)
    }

    pub(in crate::drains) fn thaw(&self) {
        self.thaw.send(()).expect("a write hangs");
    }

    /// Waits until the write that hangs has begun.
    pub(in crate::drains) async fn hangs(&self) {
        while self.begun() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(in crate::drains) fn begun(&self) -> usize {
        self.counts[0].load(Ordering::SeqCst)
    }

    pub(in crate::drains) async fn contents(&self) -> All {
        load(&state_file::path(self.directory.path())).await
    }
}

#[tokio::test]
async fn no_write_begins_while_one_hangs_and_withdrawn_contents_do_not_take_effect() {
    for is_late in [false, true] {
        let (before, refused) = (drained(&["192.0.2.12:8080"]), drained(&["192.0.2.11:8080", "192.0.2.12:8080"]));
        let (disk, mut writer) = Disk::frozen(before.clone(), is_late);
        assert!(writer.has_written(&before));
        tokio::time::pause();
        let error = writer.save(&refused).await.expect_err("the disk hangs");
        assert_eq!(error.to_string(), "timed out after 60s");
        writer.withdraw();
        for _ in 0..3 {
            assert!(writer.save(&refused).await.is_err() && writer.is_busy());
        }
        tokio::time::resume();
        disk.hangs().await;
        assert_eq!(disk.begun(), 1, "they only wait");
        disk.thaw();
        let ended = writer.ends_by(Instant::now() + Duration::from_secs(60)).await.expect("a write");
        assert_eq!((ended.is_ok(), writer.has_written(&before)), (is_late, false));
        assert_eq!(disk.contents().await, if is_late { refused } else { before.clone() });
        writer.save(&before).await.expect("saved");
        assert_eq!((disk.contents().await, writer.has_written(&before)), (before.clone(), true));
    }
}
