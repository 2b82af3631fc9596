//! Finds a GOAWAY frame in received HTTP/2 frames (RFC 9113, 6.8), because hyper does not expose why a connection has
//! ended. Pure.

/// The length of a frame header in bytes: length, type, flags, stream.
const HEAD: usize = 9;

/// The length of a GOAWAY frame up to its error code, in bytes.
const WHOLE: usize = HEAD + 8;

const GOAWAY: u8 = 7;

#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The part of the current frame's beginning that has arrived.
    head: [u8; WHOLE],
    have: usize,
    /// The number of payload bytes to skip.
    left: usize,
}

impl Frames {
    /// Processes received bytes, and returns whether they complete a GOAWAY without an error.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> bool {
        let mut is_found = false;
        while !bytes.is_empty() {
            if self.left > 0 {
                let passed = self.left.min(bytes.len());
                self.left -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            let wanted = if self.have < HEAD { HEAD } else { WHOLE };
            let taken = (wanted - self.have).min(bytes.len());
            self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            is_found |= self.take();
        }
        is_found
    }

    fn take(&mut self) -> bool {
        let [a, b, c, kind, ..] = self.head;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let is_goaway = kind == GOAWAY && HEAD + length >= WHOLE;
        match self.have {
            HEAD if !is_goaway => (self.left, self.have) = (length, 0),
            WHOLE => {
                (self.left, self.have) = (HEAD + length - WHOLE, 0);
                return self.head[WHOLE - 4..] == [0; 4];
            }
            _ => {}
        }
        false
    }
}

#[cfg(test)]
#[path = "tests/frames.rs"]
mod tests;
