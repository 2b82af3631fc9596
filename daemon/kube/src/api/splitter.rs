//! Cuts what an apiserver sends into objects while it arrives, so that memory follows the largest object and not the
//! length of a list. Looks at line ends, braces, brackets and strings only; whether an object makes sense is the decoder's
//! business.

use tokio_util::bytes::BytesMut;
use tokio_util::codec::{Decoder, LinesCodec, LinesCodecError};

/// The most bytes an object may have. etcd takes 1.5 MB, in a denser form.
pub const MAX_OBJECT: usize = 8 << 20;

/// The most bytes of a list beside its items.
const MAX_SHELL: usize = 64 << 10;

/// How deep braces and brackets may be nested; Kubernetes' own decoder allows no more.
const MAX_DEPTH: usize = 10_000;

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A whole object: an event of a watch, an item of a list.
    Object(&'a [u8]),
    /// An object of more than [`MAX_OBJECT`] bytes: not kept.
    TooLong,
    /// The list itself without its items, once it is complete.
    Shell(&'a [u8]),
}

/// What arrives is not what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// Not JSON, or JSON of another form.
    #[error("what the server sends is not JSON objects (it begins with `{0}`)")]
    NotObjects(String),
    /// No text at all.
    #[error("what the server sends is not UTF-8")]
    NotText,
    /// Nested without end.
    #[error("the server sends JSON nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// A list with too much beside its items.
    #[error("the server sends a list with more than {MAX_SHELL} bytes beside its items")]
    ShellTooLong,
}

/// Cuts a watch into its events: each is a line.
#[derive(Debug)]
pub struct Lines {
    codec: LinesCodec,
    buffer: BytesMut,
}

impl Default for Lines {
    fn default() -> Self {
        Self::with_max(MAX_OBJECT)
    }
}

impl Lines {
    fn with_max(max_object: usize) -> Self {
        Self { codec: LinesCodec::new_with_max_length(max_object), buffer: BytesMut::new() }
    }

    /// Takes in what arrived and hands on whatever is complete.
    ///
    /// # Errors
    /// When it cannot be cut. What follows is of no more use then.
    pub fn feed(&mut self, bytes: &[u8], mut found: impl FnMut(Piece<'_>)) -> Result<(), SplitError> {
        self.buffer.extend_from_slice(bytes);
        loop {
            match self.codec.decode(&mut self.buffer) {
                Ok(Some(line)) => {
                    may_be_object(line.as_bytes())?;
                    if !line.trim_ascii().is_empty() {
                        found(Piece::Object(line.as_bytes()));
                    }
                }
                // Does not wait for the end of a line that is no event.
                Ok(None) => return may_be_object(&self.buffer),
                Err(LinesCodecError::MaxLineLengthExceeded) => {
                    may_be_object(&self.buffer)?;
                    found(Piece::TooLong);
                }
                Err(LinesCodecError::Io(_)) => return Err(SplitError::NotText),
            }
        }
    }
}

/// Looks at the first byte only.
fn may_be_object(line: &[u8]) -> Result<(), SplitError> {
    let is_possible = line.first().is_none_or(|first| *first == b'{' || first.is_ascii_whitespace());
    if is_possible { Ok(()) } else { Err(not_objects(line)) }
}

/// Cuts a list into its items: an object whose field `items` is a list of objects.
#[derive(Debug)]
pub struct Splitter {
    max_object: usize,
    depth: usize,
    string: Option<Quoted>,
    /// The object being collected.
    object: Vec<u8>,
    /// Its length, also where that is too much to be collected.
    length: usize,
    shell: Vec<u8>,
    /// The beginning of the last string at depth 1 of a list: its keys are there.
    key: Vec<u8>,
    in_items: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quoted {
    Plain,
    AfterBackslash,
}

/// Where a byte goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Object,
    Shell,
    Between,
}

const ITEMS: &[u8] = b"items";

impl Default for Splitter {
    fn default() -> Self {
        Self::with_max(MAX_OBJECT)
    }
}

impl Splitter {
    fn with_max(max_object: usize) -> Self {
        Self {
            max_object,
            depth: 0,
            string: None,
            object: Vec::new(),
            length: 0,
            shell: Vec::new(),
            key: Vec::new(),
            in_items: false,
        }
    }

    /// Whether nothing is half-way through.
    pub fn is_between_objects(&self) -> bool {
        self.depth == 0 && self.string.is_none()
    }

    /// Takes in what arrived and hands on whatever is complete.
    ///
    /// # Errors
    /// When it cannot be cut. The splitter is of no more use then.
    pub fn feed(&mut self, bytes: &[u8], mut found: impl FnMut(Piece<'_>)) -> Result<(), SplitError> {
        // Bytes are copied run by run; `from` is where the current run begins.
        let mut from = 0;
        for (at, &byte) in bytes.iter().enumerate() {
            if let Some(quoted) = self.string {
                self.continue_string(quoted, byte);
                continue;
            }
            match byte {
                b'"' if self.part() == Part::Between && !self.in_items => return Err(not_objects(&bytes[at..])),
                b'"' => {
                    self.string = Some(Quoted::Plain);
                    if self.depth == 1 {
                        self.key.clear();
                    }
                }
                b'{' | b'[' => {
                    let before = self.part();
                    let opens_items = self.open(byte).ok_or_else(|| not_objects(&bytes[at..]))?;
                    if self.depth > MAX_DEPTH {
                        return Err(SplitError::TooDeep);
                    }
                    if self.part() != before {
                        let end = at + usize::from(opens_items);
                        self.keep(before, &bytes[from..end])?;
                        from = end;
                    }
                }
                b'}' | b']' => {
                    let before = self.part();
                    self.close().ok_or_else(|| not_objects(&bytes[at..]))?;
                    if self.part() != before {
                        let end = if before == Part::Between { at } else { at + 1 };
                        self.keep(before, &bytes[from..end])?;
                        from = end;
                        self.hand_on(before, &mut found);
                    }
                }
                byte if self.depth == 0 && !byte.is_ascii_whitespace() => return Err(not_objects(&bytes[at..])),
                _ => {}
            }
        }
        self.keep(self.part(), &bytes[from..])
    }

    fn continue_string(&mut self, quoted: Quoted, byte: u8) {
        self.string = match (quoted, byte) {
            (Quoted::Plain, b'"') => None,
            (Quoted::Plain, b'\\') => Some(Quoted::AfterBackslash),
            _ => Some(Quoted::Plain),
        };
        if self.depth == 1 && self.string.is_some() && self.key.len() <= ITEMS.len() {
            self.key.push(byte);
        }
    }

    /// Where the next byte goes.
    fn part(&self) -> Part {
        match self.depth {
            0 => Part::Between,
            2 if self.in_items => Part::Between,
            _ if self.in_items => Part::Object,
            _ => Part::Shell,
        }
    }

    /// Whether the brace opens the items of a list; `None` where it may not stand.
    fn open(&mut self, byte: u8) -> Option<bool> {
        if self.depth == 0 && byte == b'[' {
            return None;
        }
        let opens_items = self.depth == 1 && byte == b'[' && self.key == ITEMS;
        self.in_items |= opens_items;
        self.depth += 1;
        Some(opens_items)
    }

    fn close(&mut self) -> Option<()> {
        self.depth = self.depth.checked_sub(1)?;
        self.in_items &= self.depth > 1;
        Some(())
    }

    fn keep(&mut self, part: Part, bytes: &[u8]) -> Result<(), SplitError> {
        match part {
            Part::Between => {}
            Part::Object => {
                self.length += bytes.len();
                if self.length > self.max_object {
                    self.object = Vec::new();
                } else {
                    self.object.extend_from_slice(bytes);
                }
            }
            Part::Shell => {
                if self.shell.len() + bytes.len() > MAX_SHELL {
                    return Err(SplitError::ShellTooLong);
                }
                self.shell.extend_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn hand_on(&mut self, part: Part, found: &mut impl FnMut(Piece<'_>)) {
        match part {
            Part::Between => {}
            Part::Object => {
                let length = std::mem::take(&mut self.length);
                found(if length > self.max_object { Piece::TooLong } else { Piece::Object(&self.object) });
                self.object.clear();
            }
            Part::Shell => {
                found(Piece::Shell(&self.shell));
                self.shell.clear();
            }
        }
    }
}

fn not_objects(bytes: &[u8]) -> SplitError {
    let beginning = &bytes[..bytes.len().min(40)];
    SplitError::NotObjects(String::from_utf8_lossy(beginning).escape_debug().to_string())
}

#[cfg(test)]
mod tests;
