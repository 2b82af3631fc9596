//! Cuts a response of an apiserver into JSON objects while it arrives, so that memory use depends on the largest object
//! and not on the length of a list. Examines only line ends, braces, brackets and strings; the decoder validates the
//! objects.

use std::mem;

use memchr::memchr;

use super::plain::end_of_text;

/// The maximum size of an object in bytes. etcd accepts 1.5 MB in a more compact format.
pub const MAX_OBJECT: usize = 8 << 20;

/// The maximum size of a list without its items, in bytes.
const MAX_LIST_FIELDS: usize = 64 << 10;

/// The maximum nesting depth of braces and brackets; the same as in Kubernetes' own decoder.
const MAX_DEPTH: usize = 10_000;

/// The nesting depth between the items of a list.
const ITEMS_DEPTH: usize = 2;

#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// One object: an event of a watch, or an item of a list.
    Object(&'a [u8]),
    /// An object larger than [`MAX_OBJECT`]. Its contents were dropped.
    TooLong,
    /// The list without its items, at the end of the list.
    ListFields(&'a [u8]),
}

/// The response is not a watch or list in JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    #[error("the response is not a sequence of JSON objects (it begins with `{0}`)")]
    NotObjects(String),
    #[error("the response contains JSON that is nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    #[error("the response is a list with more than {MAX_LIST_FIELDS} bytes in addition to its items")]
    ListFieldsTooLong,
}

/// Cuts the response of a watch into events, one per line. An event that arrives in one piece is not copied.
#[derive(Debug)]
pub struct Lines {
    max_object: usize,
    /// The beginning of a line that has not arrived completely.
    begun: Vec<u8>,
    /// Whether the beginning of the current line was dropped, because it is too long.
    is_too_long: bool,
}

impl Default for Lines {
    fn default() -> Self {
        Self::with_max(MAX_OBJECT)
    }
}

impl Lines {
    fn with_max(max_object: usize) -> Self {
        Self { max_object, begun: Vec::new(), is_too_long: false }
    }

    /// Adds received bytes, and passes each complete event to `found`.
    ///
    /// # Errors
    /// The bytes cannot be cut into events. The caller must not continue with this response.
    pub fn feed(&mut self, mut bytes: &[u8], mut found: impl FnMut(Piece<'_>)) -> Result<(), SplitError> {
        while let Some(end) = memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if mem::take(&mut self.is_too_long) {
                continue;
            }
            if self.begun.is_empty() {
                self.end_line(line, &mut found)?;
            } else {
                // Not kept: a single long line would occupy its memory for as long as the watch.
                let mut whole = mem::take(&mut self.begun);
                whole.extend_from_slice(line);
                self.end_line(&whole, &mut found)?;
            }
        }
        if self.is_too_long {
            return Ok(());
        }
        self.begun.extend_from_slice(bytes);
        // An invalid line is rejected before its end has arrived.
        may_be_object(&self.begun)?;
        if self.begun.len() > self.max_object {
            self.begun = Vec::new();
            self.is_too_long = true;
            found(Piece::TooLong);
        }
        Ok(())
    }

    fn end_line(&self, line: &[u8], found: &mut impl FnMut(Piece<'_>)) -> Result<(), SplitError> {
        may_be_object(line)?;
        if line.len() > self.max_object {
            found(Piece::TooLong);
        } else if !line.trim_ascii().is_empty() {
            found(Piece::Object(line.strip_suffix(b"\r").unwrap_or(line)));
        }
        Ok(())
    }
}

/// Checks the first byte only.
fn may_be_object(line: &[u8]) -> Result<(), SplitError> {
    let is_possible = line.first().is_none_or(|first| *first == b'{' || first.is_ascii_whitespace());
    if is_possible { Ok(()) } else { Err(not_objects(line)) }
}

/// Cuts a list into its items. The list is an object with an array of objects in its field `items`.
#[derive(Debug)]
pub struct Splitter {
    max_object: usize,
    depth: usize,
    string: Option<Quoted>,
    /// The part of the current object that has arrived.
    object: Vec<u8>,
    /// The length of the current object in bytes, even if it is too large to be stored.
    length: usize,
    list_fields: Vec<u8>,
    /// The beginning of the most recent string at depth 1 of a list, where its keys are.
    key: Vec<u8>,
    in_items: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quoted {
    Plain,
    AfterBackslash,
}

/// The part of the response that a byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Object,
    ListFields,
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
            list_fields: Vec::new(),
            key: Vec::new(),
            in_items: false,
        }
    }

    pub fn is_between_objects(&self) -> bool {
        self.depth == 0 && self.string.is_none()
    }

    /// Adds received bytes, and passes each complete part to `found`.
    ///
    /// # Errors
    /// The bytes cannot be cut into objects. The caller must not use this splitter again.
    pub fn feed(&mut self, bytes: &[u8], mut found: impl FnMut(Piece<'_>)) -> Result<(), SplitError> {
        // Bytes are copied in runs; `from` is the beginning of the current run.
        let (mut from, mut at) = (0, 0);
        while at < bytes.len() {
            if self.part() == Part::Object {
                at = self.inside_object(bytes, at)?;
            }
            let Some(&byte) = bytes.get(at) else { break };
            if let Some(quoted) = self.string {
                self.continue_string(quoted, byte);
                at += 1;
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
            at += 1;
        }
        self.keep(self.part(), &bytes[from..])
    }

    /// The position of the brace that ends the current object, or the end of the bytes.
    fn inside_object(&mut self, bytes: &[u8], mut at: usize) -> Result<usize, SplitError> {
        let (mut depth, mut string) = (self.depth, self.string);
        while let Some(byte) = bytes.get(at) {
            match (string, byte) {
                (Some(Quoted::AfterBackslash), _) => string = Some(Quoted::Plain),
                (Some(Quoted::Plain), _) => {
                    at = end_of_text(bytes, at);
                    match bytes.get(at) {
                        Some(b'"') => string = None,
                        Some(b'\\') => string = Some(Quoted::AfterBackslash),
                        _ => {}
                    }
                }
                (None, b'"') => string = Some(Quoted::Plain),
                (None, b'{' | b'[') if depth == MAX_DEPTH => return Err(SplitError::TooDeep),
                (None, b'{' | b'[') => depth += 1,
                (None, b'}' | b']') if depth == ITEMS_DEPTH + 1 => break,
                (None, b'}' | b']') => depth -= 1,
                _ => {}
            }
            at += 1;
        }
        (self.depth, self.string) = (depth, string);
        Ok(at.min(bytes.len()))
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

    fn part(&self) -> Part {
        match self.depth {
            0 => Part::Between,
            ITEMS_DEPTH if self.in_items => Part::Between,
            _ if self.in_items => Part::Object,
            _ => Part::ListFields,
        }
    }

    /// Whether this bracket or brace opens the items of the list; `None` if it is not allowed here.
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
        self.in_items &= self.depth >= ITEMS_DEPTH;
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
            Part::ListFields => {
                if self.list_fields.len() + bytes.len() > MAX_LIST_FIELDS {
                    return Err(SplitError::ListFieldsTooLong);
                }
                self.list_fields.extend_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn hand_on(&mut self, part: Part, found: &mut impl FnMut(Piece<'_>)) {
        match part {
            Part::Between => {}
            Part::Object => {
                let length = mem::take(&mut self.length);
                found(if length > self.max_object { Piece::TooLong } else { Piece::Object(&self.object) });
                self.object.clear();
            }
            Part::ListFields => {
                found(Piece::ListFields(&self.list_fields));
                self.list_fields.clear();
            }
        }
    }
}

fn not_objects(bytes: &[u8]) -> SplitError {
    let beginning = &bytes[..bytes.len().min(40)];
    SplitError::NotObjects(String::from_utf8_lossy(beginning).escape_debug().to_string())
}

#[cfg(test)]
#[path = "tests/splitter.rs"]
mod tests;
