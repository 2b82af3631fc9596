use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use nodelb_core::text::is_control;
use tracing::Level;
use tracing_subscriber::filter::FilterExt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry, reload};

use super::limit::{BURST, Limit};
use super::{Control, LogLine, Out, leads_to, messages, plain, targets};

#[path = "log/documents.rs"]
mod documents;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn lines_are_plain_and_the_level_changes_while_running() {
    let lines = Lines::default();
    let writer = lines.clone();
    let (filter, handle) = reload::Layer::new(targets(Level::INFO));
    let subscriber = Registry::default().with(plain(move || writer.clone(), false).with_filter(filter));
    let control = Control { level: handle, limit: Limit::default() };
    tracing::subscriber::with_default(subscriber, || {
        tracing::info!(message_id = %messages::APPLIED, service = %"shop/web", "backends changed");
        tracing::debug!("not yet");
        let line = lines.take();
        assert!(line.ends_with("INFO backends changed service=shop/web\n"), "{line:?}");
        assert!(!line.contains('\u{1b}'), "{line:?}");

        tracing::info!(file = %"a\nb\u{202e}", problem = "c\u{200b}", "d\n{}", "e\u{1b}[2J");
        let line = lines.take();
        assert_eq!(line.matches(is_control).collect::<Vec<_>>(), ["\n"], "{line:?}");
        assert!(line.contains(r"d\ne\u{1b}[2J") && line.contains(r"file=a\nb\u{202e}"), "{line:?}");

        control.set(Level::DEBUG);
        tracing::debug!("now");
        tracing::debug!(target: "hyper", "never");
        tracing::error!(target: "kube_client::client", "a response that cannot be decoded");
        assert!(lines.take().ends_with("DEBUG now\n"));

        control.set(Level::ERROR);
        tracing::warn!("hidden");
        tracing::warn!(target: "hyper", "hidden");
        assert_eq!(lines.take(), "");
    });
}

#[test]
fn on_a_terminal_lines_have_colours() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = Registry::default().with(plain(move || writer.clone(), true));
    tracing::subscriber::with_default(subscriber, || tracing::warn!("careful"));
    let line = lines.take();
    assert!(line.contains("\u{1b}[") && line.contains("careful"), "{line:?}");
}

#[test]
fn the_journal_is_recognised_by_device_and_inode() {
    let file = tempfile::tempfile().unwrap();
    let stat = nix::sys::stat::fstat(file.as_fd()).unwrap();
    assert!(leads_to(file.as_fd(), &format!("{}:{}", stat.st_dev, stat.st_ino)));
    assert!(!leads_to(file.as_fd(), &format!("{}:{}", stat.st_dev, stat.st_ino + 1)));
    assert!(!leads_to(file.as_fd(), ""));
}

#[test]
fn a_storm_is_cut_short_and_other_lines_are_not() {
    let lines = Lines::default();
    let writer = lines.clone();
    let (filter, _handle) = reload::Layer::new(targets(Level::INFO));
    let filter = filter.and(Limit::default());
    let subscriber = Registry::default().with(plain(move || writer.clone(), false).with_filter(filter));
    tracing::subscriber::with_default(subscriber, || {
        for number in 0..BURST + 50 {
            tracing::warn!(message_id = %messages::APISERVER_FAILED, "number {number}");
        }
        let reported = lines.take();
        assert_eq!(reported.lines().count(), BURST as usize);
        assert!(reported.lines().next().unwrap().ends_with("number 0"), "{reported}");
        tracing::warn!(message_id = %messages::APISERVER_FAILED, more = 50, "50 more");
        tracing::warn!(message_id = %messages::APPLIED, "another");
        tracing::warn!("without an id");
        assert_eq!(lines.take().lines().count(), 3);
    });
}

#[test]
fn dropped_lines_are_reported_once_and_the_writer_gets_the_others() {
    let (thaw, frozen) = mpsc::channel::<()>();
    let written = Lines::default();
    let mut to = written.clone();
    let out = Out::new(move |line| {
        let _ = frozen.recv();
        if let LogLine::Plain(text) = line {
            to.write_all(&text).unwrap();
        }
    });
    // More lines than fit, however many the writer has taken meanwhile.
    let lines = 10_000;
    (0..lines).for_each(|number| out.queue.push(LogLine::Plain(format!("{number}\n").into_bytes()), 8));
    let dropped = out.queue.dropped();
    assert!(dropped > 0);
    let reported = Lines::default();
    let writer = reported.clone();
    let subscriber = Registry::default().with(plain(move || writer.clone(), false));
    tracing::subscriber::with_default(subscriber, || {
        out.report_dropped();
        out.report_dropped();
    });
    let reported = reported.take();
    assert_eq!(reported.lines().count(), 1, "{reported}");
    assert!(reported.contains(&format!("WARN dropped {dropped} log lines: journald")), "{reported}");
    out.begin_writing().unwrap();
    assert!(!out.queue.flush(Duration::from_millis(10)));
    drop(thaw);
    assert!(out.queue.flush(Duration::from_secs(60)));
    assert_eq!(written.take().lines().count() as u64, lines - dropped);
}

#[test]
fn lines_of_every_package_are_shown() {
    let lines = Lines::default();
    let writer = lines.clone();
    let layer = plain(move || writer.clone(), false).with_filter(targets(Level::INFO));
    tracing::subscriber::with_default(Registry::default().with(layer), || {
        tracing::info!(target: "nodelb_kube::source::watch", "of the source");
        tracing::info!(target: "nodelb_cli", "of a command");
        tracing::info!(target: "hyper", "of a library");
    });
    let reported = lines.take();
    assert!(
        reported.contains("of the source") && reported.contains("of a command") && !reported.contains("of a library"),
        "{reported}"
    );
}

/// The library that sends lines to journald drops them while there is none, and counts nothing.
#[test]
fn lines_wait_for_journald() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    assert!(!super::listens(&path));
    let waiting = std::thread::spawn({
        let path = path.clone();
        move || {
            super::wait_for(&path);
            super::listens(&path)
        }
    });
    let _journald = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    assert!(waiting.join().unwrap());
}
