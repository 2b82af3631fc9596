use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::{BYTES, LINES, Queue};

/// A thread that takes the first line and blocks until the returned sender is dropped; the receiver gets the written
/// lines.
fn stuck(queue: &Queue<usize>) -> (mpsc::Sender<()>, mpsc::Receiver<usize>) {
    let (thaw, frozen) = mpsc::channel::<()>();
    let (written_in, written) = mpsc::channel();
    let write = move |line| {
        let _ = frozen.recv();
        written_in.send(line).unwrap();
    };
    queue.start(write).unwrap();
    (thaw, written)
}

#[test]
fn a_writer_that_blocks_delays_no_line_and_what_does_not_fit_is_counted() {
    let queue = Queue::default();
    let (thaw, written) = stuck(&queue);
    queue.push(0, 1);
    // The thread has taken this line and blocks.
    while !queue.lock().waiting.is_empty() {
        std::thread::yield_now();
    }
    let began = Instant::now();
    (1..=LINES + 10).for_each(|line| queue.push(line, 1));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(queue.dropped(), 10);
    assert!(!queue.has_room());
    assert!(!queue.flush(Duration::from_millis(20)), "the writer is stuck");
    drop(thaw);
    assert!(queue.flush(Duration::from_secs(60)));
    assert!(queue.has_room());
    let lines: Vec<usize> = written.try_iter().collect();
    assert_eq!(lines, (0..=LINES).collect::<Vec<_>>(), "in order, the newest dropped");
    assert_eq!(queue.dropped(), 10);
}

#[test]
fn long_lines_are_bounded_by_their_bytes() {
    let queue = Queue::default();
    queue.push("long", BYTES);
    queue.push("short", 1);
    assert_eq!(queue.dropped(), 1);
    assert!(!queue.flush(Duration::ZERO), "no thread writes yet");
    let (written_in, written) = mpsc::channel();
    queue.start(move |line| written_in.send(line).unwrap()).unwrap();
    assert!(queue.flush(Duration::from_secs(60)));
    assert_eq!(written.try_iter().collect::<Vec<_>>(), ["long"]);
    queue.push("short", 1);
    assert!(queue.flush(Duration::from_secs(60)));
    assert_eq!(written.try_iter().collect::<Vec<_>>(), ["short"]);
}
