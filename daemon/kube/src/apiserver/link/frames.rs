//! HTTP/2 frames as they arrive, as far as it takes to find a GOAWAY (RFC 9113, 6.8): hyper ends the connection in the
//! same way whatever the reason. Pure.

/// Bytes of a frame before its payload: length, type, flags, stream.
const HEAD: usize = 9;

/// Of a GOAWAY, its last stream and error code too.
const WHOLE: usize = HEAD + 8;

const GOAWAY: u8 = 7;

/// Where in a frame the next byte is.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The beginning of a frame, as far as it has arrived.
    head: [u8; WHOLE],
    have: usize,
    /// Bytes of payload to be passed over.
    left: usize,
}

impl Frames {
    /// Reads what has arrived; whether a GOAWAY without an error is complete in it.
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

    /// Takes what is complete of the beginning of a frame.
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
mod tests;
