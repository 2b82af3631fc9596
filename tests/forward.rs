//! Two connections made one, for what stands in front of an apiserver in tests and benches.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::thread;

/// Copies both ways until either side ends; then both are shut down.
pub(crate) fn join(left: &TcpStream, right: &TcpStream) -> io::Result<()> {
    left.set_nodelay(true)?;
    right.set_nodelay(true)?;
    let (from, to) = (left.try_clone()?, right.try_clone()?);
    let back = thread::spawn(move || copy(&from, &to));
    copy(right, left);
    drop(back.join());
    Ok(())
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    // However it ends, both sides see the end.
    drop(io::copy(&mut from, &mut to));
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
}
