//! Netlink datagrams of any kind (netlink(7)): consecutive messages, each with its own header.

/// Length of a `struct nlmsghdr` in bytes.
pub const HEADER: usize = 16;

/// The messages of a datagram. A truncated message ends it.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*datagram.first_chunk()?)).ok()?;
        if length < HEADER || length > datagram.len() {
            return None;
        }
        let (message, _) = datagram.split_at(length);
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

#[cfg(test)]
#[path = "tests/netlink.rs"]
mod tests;
