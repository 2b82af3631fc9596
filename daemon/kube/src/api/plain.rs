//! Decodes JSON in the form that apiservers write: no space between its parts, no number but whole positive ones, and
//! no escapes in the strings that are read. All other JSON, valid or not, is left to `serde_json`: here, an error needs
//! neither a position nor a text. If `decode::parse` calls only `serde_json`, events of EndpointSlices cost 2.9 times
//! as many instructions (`decode-events` of `make regressions`: 81.5 instead of 27.9 million), and 2.1 times as many
//! without `plain_objects`.

use std::fmt;

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

/// The maximum nesting depth of values that are ignored.
const MAX_DEPTH: u32 = 32;

/// A type that can be decoded here, with the same result as by `serde_json`.
pub(super) trait FromPlain<'a>: Deserialize<'a> {
    /// Decodes the value that comes next.
    ///
    /// # Errors
    /// `serde_json` has to decide.
    fn from_plain(plain: &mut Plain<'a>) -> Result<Self, NotPlain> {
        Self::deserialize(plain)
    }
}

/// Decodes a text that consists of one value; `None` if `serde_json` has to decide.
pub(super) fn decode<'a, T: FromPlain<'a>>(text: &'a str) -> Option<T> {
    let mut plain = Plain { text, at: 0 };
    let decoded = T::from_plain(&mut plain).ok()?;
    (plain.at == text.len()).then_some(decoded)
}

/// The text, and the position of the next byte to read.
#[derive(Debug)]
pub(super) struct Plain<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

/// The text is not plain, or not of this type.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("not plain JSON of this type")]
pub(super) struct NotPlain;

impl serde::de::Error for NotPlain {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

/// The fields that an object has had so far, by number.
#[derive(Default)]
pub(super) struct Fields(u32);

impl Fields {
    /// Stores the value of a field. Fails if the object has had the field before.
    #[inline]
    pub(super) fn set<T>(&mut self, number: u32, field: &mut T, value: T) -> Result<(), NotPlain> {
        let bit = 1 << number;
        if self.0 & bit != 0 {
            return Err(NotPlain);
        }
        self.0 |= bit;
        *field = value;
        Ok(())
    }
}

impl<'a> Plain<'a> {
    #[inline]
    pub(super) fn next(&self) -> Result<u8, NotPlain> {
        self.text.as_bytes().get(self.at).copied().ok_or(NotPlain)
    }

    #[inline]
    fn take(&mut self, byte: u8) -> Result<(), NotPlain> {
        if self.next()? != byte {
            return Err(NotPlain);
        }
        self.at += 1;
        Ok(())
    }

    pub(super) fn take_word(&mut self, word: &str) -> Result<(), NotPlain> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(NotPlain);
        }
        self.at += word.len();
        Ok(())
    }

    /// Whether another item follows the ones before, which are none if this is the `first`. Takes the comma.
    #[inline]
    fn has_more(&mut self, first: &mut bool, end: u8) -> Result<bool, NotPlain> {
        let next = self.next()?;
        if next == end {
            return Ok(false);
        }
        if !std::mem::take(first) {
            if next != b',' {
                return Err(NotPlain);
            }
            self.at += 1;
        }
        Ok(true)
    }

    /// Passes the key of each field to `field`, which has to take the value.
    pub(super) fn object(
        &mut self,
        mut field: impl FnMut(&mut Self, &'a str) -> Result<(), NotPlain>,
    ) -> Result<(), NotPlain> {
        self.take(b'{')?;
        let mut first = true;
        while self.has_more(&mut first, b'}')? {
            let key = self.string()?;
            self.take(b':')?;
            field(self, key)?;
        }
        self.take(b'}')
    }

    /// Calls `item` for each item of a list, which has to take it. `null` is an empty list.
    pub(super) fn list(&mut self, mut item: impl FnMut(&mut Self) -> Result<(), NotPlain>) -> Result<(), NotPlain> {
        if self.next()? == b'n' {
            return self.take_word("null");
        }
        self.take(b'[')?;
        let mut first = true;
        while self.has_more(&mut first, b']')? {
            item(self)?;
        }
        self.take(b']')
    }

    /// A string without escapes.
    pub(super) fn string(&mut self) -> Result<&'a str, NotPlain> {
        self.take(b'"')?;
        let text = self.text()?;
        self.take(b'"')?;
        Ok(text)
    }

    /// Text up to a quotation mark, a backslash or a control character.
    pub(super) fn text(&mut self) -> Result<&'a str, NotPlain> {
        let from = self.at;
        self.at = end_of_text(self.text.as_bytes(), from);
        self.text.get(from..self.at).ok_or(NotPlain)
    }

    /// A whole number without a sign.
    fn number(&mut self) -> Result<u64, NotPlain> {
        let from = self.at;
        let mut number = 0_u64;
        while let Some(digit) = self.next()?.checked_sub(b'0').filter(|digit| *digit < 10) {
            number = number.checked_mul(10).and_then(|number| number.checked_add(digit.into())).ok_or(NotPlain)?;
            self.at += 1;
        }
        let is_plain = self.at == from + 1 || (self.at > from && self.text.as_bytes()[from] != b'0');
        if is_plain { Ok(number) } else { Err(NotPlain) }
    }

    /// Ignores a value. Its strings may contain escapes.
    pub(super) fn skip(&mut self) -> Result<(), NotPlain> {
        self.skip_at(0)
    }

    fn skip_at(&mut self, depth: u32) -> Result<(), NotPlain> {
        match self.next()? {
            b'"' => self.skip_string(),
            opening @ (b'{' | b'[') if depth < MAX_DEPTH => {
                self.at += 1;
                let end = opening + 2;
                let mut first = true;
                while self.has_more(&mut first, end)? {
                    if opening == b'{' {
                        self.skip_string()?;
                        self.take(b':')?;
                    }
                    // Most values are strings.
                    if self.next()? == b'"' { self.skip_string()? } else { self.skip_at(depth + 1)? }
                }
                self.take(end)
            }
            b't' => self.take_word("true"),
            b'f' => self.take_word("false"),
            b'n' => self.take_word("null"),
            _ => self.number().map(|_ignored| ()),
        }
    }

    fn skip_string(&mut self) -> Result<(), NotPlain> {
        let bytes = self.text.as_bytes();
        self.take(b'"')?;
        self.at = end_of_text(bytes, self.at);
        while self.next()? == b'\\' {
            let length = match bytes[self.at + 1..] {
                [b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => 2,
                [b'u', a, b, c, d, ..] if [a, b, c, d].iter().all(u8::is_ascii_hexdigit) => 6,
                _ => return Err(NotPlain),
            };
            self.at = end_of_text(bytes, self.at + length);
        }
        self.take(b'"')
    }
}

/// The position of the first quotation mark, backslash or control character, from a position on.
pub(super) fn end_of_text(bytes: &[u8], from: usize) -> usize {
    let (chunks, rest) = bytes[from..].as_chunks();
    let mut at = from;
    for chunk in chunks {
        let ends = ends_of_text(u64::from_le_bytes(*chunk));
        if ends != 0 {
            return at + ends.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + rest.iter().take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..b' ')).count()
}

/// The highest bit of the first byte that is a quotation mark, a backslash or a control character; bits of the bytes
/// after it mean nothing.
#[inline]
fn ends_of_text(eight: u64) -> u64 {
    const EACH: u64 = u64::MAX / 0xff;
    // A quotation mark becomes a space, and a control character another one.
    let quote_or_control = (eight ^ (EACH * 0x02)).wrapping_sub(EACH * 0x21);
    let backslash = (eight ^ (EACH * 0x5c)).wrapping_sub(EACH);
    (quote_or_control | backslash) & !eight & (EACH * 0x80)
}

impl<'de> Deserializer<'de> for &mut Plain<'de> {
    type Error = NotPlain;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, NotPlain> {
        match self.next()? {
            b'"' => visitor.visit_borrowed_str(self.string()?),
            b'{' => {
                self.at += 1;
                let value = visitor.visit_map(Items { plain: self, first: true });
                if self.take(b'}').is_ok() { value } else { Err(NotPlain) }
            }
            b'[' => {
                self.at += 1;
                let value = visitor.visit_seq(Items { plain: self, first: true });
                if self.take(b']').is_ok() { value } else { Err(NotPlain) }
            }
            b't' => self.take_word("true").and_then(|()| visitor.visit_bool(true)),
            b'f' => self.take_word("false").and_then(|()| visitor.visit_bool(false)),
            b'n' => self.take_word("null").and_then(|()| visitor.visit_unit()),
            _ => visitor.visit_u64(self.number()?),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, NotPlain> {
        if self.next()? == b'n' {
            self.take_word("null")?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, NotPlain> {
        self.skip()?;
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, NotPlain> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier
    }
}

/// The items of an object or a list.
struct Items<'p, 'a> {
    plain: &'p mut Plain<'a>,
    first: bool,
}

impl<'de> SeqAccess<'de> for Items<'_, 'de> {
    type Error = NotPlain;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, NotPlain> {
        if self.plain.has_more(&mut self.first, b']')? {
            seed.deserialize(&mut *self.plain).map(Some)
        } else {
            Ok(None)
        }
    }
}

impl<'de> MapAccess<'de> for Items<'_, 'de> {
    type Error = NotPlain;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, NotPlain> {
        if !self.plain.has_more(&mut self.first, b'}')? {
            return Ok(None);
        }
        let key = self.plain.string()?;
        self.plain.take(b':')?;
        seed.deserialize(BorrowedStrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, NotPlain> {
        seed.deserialize(&mut *self.plain)
    }
}

#[cfg(test)]
#[path = "tests/plain.rs"]
mod tests;
