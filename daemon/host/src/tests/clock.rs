use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::{Late, PAUSE, by};

const LIMIT: Duration = Duration::from_millis(100);

/// Stops this thread, and with it the runtime of the test, until the deadline is long past.
fn pause() {
    thread::sleep(LIMIT + 2 * PAUSE);
}

#[tokio::test(start_paused = true)]
async fn work_that_takes_too_long_is_late() {
    assert_eq!(by(Instant::now() + LIMIT, sleep(2 * LIMIT)).await, Err(Late::Work));
    assert_eq!(by(Instant::now() + LIMIT, sleep(LIMIT / 2)).await, Ok(()));
}

#[tokio::test]
async fn a_pause_of_this_process_is_not_held_against_others() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"answer").unwrap();
        // Until the client closes.
        drop(stream.read(&mut [0]));
    });
    let mut stream = TcpStream::connect(address).await.unwrap();
    let deadline = Instant::now() + LIMIT;
    pause();
    let mut answer = [0; 6];
    let read = by(deadline, stream.read_exact(&mut answer)).await;
    assert_eq!(read.map(Result::unwrap), Ok(6), "the answer lay in the socket");
    let deadline = Instant::now() + LIMIT;
    pause();
    assert_eq!(by(deadline, stream.read_exact(&mut answer)).await.map(drop), Err(Late::Process));
    drop(stream);
    server.join().unwrap();
}
