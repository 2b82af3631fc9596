use std::io;
use std::sync::mpsc;
use std::time::Duration;

use super::Threads;

#[tokio::test]
async fn threads_that_do_not_come_back_are_bounded_and_free_their_place_when_they_do() {
    let threads = Threads::new("test", 2);
    let (thaw, frozen) = mpsc::channel::<()>();
    let hang = move || {
        let _ = frozen.recv();
    };
    let hung = threads.begin(hang).unwrap();
    let second = threads.begin(|| 7).unwrap();
    assert_eq!(second.await.unwrap(), 7);
    // Dropping a receiver does not free a slot, because the thread still exists.
    drop(hung);
    let (thaw_too, frozen) = mpsc::channel::<()>();
    let hung = threads.begin(move || frozen.recv().is_err()).unwrap();
    let refused = threads.clone().begin(|| ()).unwrap_err().to_string();
    assert_eq!(refused, "2 earlier attempts are still blocked");
    drop(thaw_too);
    assert!(hung.await.unwrap());
    threads.begin(|| ()).unwrap().await.unwrap();
    drop(thaw);
}

/// Each call once had a limit of its own, which therefore never applied.
#[tokio::test]
async fn the_limit_applies_to_work_with_a_time_limit() {
    let group = Threads::new("test", 1);
    // A clone counts nothing.
    let threads = group.clone();
    let (thaw, frozen) = mpsc::channel::<()>();
    let hang = move || frozen.recv().map_err(io::Error::other);
    let limit = Duration::from_millis(20);
    assert_eq!(threads.run_within(limit, hang).await.unwrap_err().to_string(), "timed out after 20ms");
    let refused = threads.run_within(limit, || Ok(())).await.unwrap_err().to_string();
    assert_eq!(refused, "1 earlier attempts are still blocked");
    drop(thaw);
}
