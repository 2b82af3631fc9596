//! EndpointSlices and watch events field by field, without the visitors of `serde`: a slice may have a thousand endpoints,
//! and most events are slices.

use std::borrow::Cow;

use compact_str::CompactString;
use serde::Deserialize;

use super::objects::{Conditions, Endpoint, EndpointHints, EndpointSlice, Envelope, MAX_ITEMS, Node, Service, list};
use super::plain::{Fields, FromPlain, NotPlain, Plain};
use crate::null::null_is_default;

impl FromPlain<'_> for Service {}
impl FromPlain<'_> for Node {}

impl<'a, O: FromPlain<'a>> FromPlain<'a> for Envelope<'a, O> {
    fn from_plain(plain: &mut Plain<'a>) -> Result<Self, NotPlain> {
        let (mut kind, mut object) = (None, None);
        let mut fields = Fields::default();
        plain.object(|plain, key| match key {
            "type" => fields.set(0, &mut kind, Some(plain.string()?)),
            "object" => fields.set(1, &mut object, Some(O::from_plain(plain)?)),
            _ => plain.skip(),
        })?;
        Ok(Self { kind: Cow::Borrowed(kind.ok_or(NotPlain)?), object: object.ok_or(NotPlain)? })
    }
}

impl<'a> FromPlain<'a> for EndpointSlice {
    fn from_plain(plain: &mut Plain<'a>) -> Result<Self, NotPlain> {
        let mut slice = Self::default();
        let mut fields = Fields::default();
        plain.object(|plain, key| match key {
            "metadata" => fields.set(0, &mut slice.metadata, null_is_default(plain)?),
            "addressType" => fields.set(1, &mut slice.address_type, null_is_default(plain)?),
            "endpoints" => fields.set(2, &mut slice.endpoints, endpoints(plain)?),
            "ports" => fields.set(3, &mut slice.ports, list(plain)?),
            _ => plain.skip(),
        })?;
        Ok(slice)
    }
}

fn endpoints(plain: &mut Plain<'_>) -> Result<Vec<Endpoint>, NotPlain> {
    let mut endpoints = Vec::new();
    let mut pattern = Pattern::default();
    plain.list(|plain| {
        if endpoints.len() == MAX_ITEMS {
            return Err(NotPlain);
        }
        let from = plain.at;
        endpoints.push(match pattern.next(plain) {
            Ok(endpoint) => endpoint,
            Err(NotPlain) => {
                plain.at = from;
                endpoint(plain, &mut pattern)?
            }
        });
        Ok(())
    })?;
    Ok(endpoints)
}

fn endpoint<'a>(plain: &mut Plain<'a>, pattern: &mut Pattern<'a>) -> Result<Endpoint, NotPlain> {
    pattern.begin(plain);
    let mut endpoint = Endpoint::default();
    let mut fields = Fields::default();
    plain.object(|plain, key| match key {
        "addresses" => fields.set(0, &mut endpoint.address, first(plain, pattern)?),
        "conditions" => fields.set(1, &mut endpoint.conditions, null_is_default(plain)?),
        "nodeName" => fields.set(2, &mut endpoint.node_name, pattern.string(plain, Place::NodeName)?),
        "zone" => fields.set(3, &mut endpoint.zone, pattern.string(plain, Place::Zone)?),
        "hints" => fields.set(4, &mut endpoint.hints, Option::deserialize(plain)?),
        "targetRef" if plain.next()? == b'{' => plain.object(|plain, key| match key {
            "name" | "uid" if plain.next()? == b'"' => pattern.string(plain, Place::Ignored).map(|_ignored| ()),
            _ => plain.skip(),
        }),
        _ => plain.skip(),
    })?;
    pattern.end(plain, &endpoint);
    Ok(endpoint)
}

/// The first string of a list.
fn first<'a>(plain: &mut Plain<'a>, pattern: &mut Pattern<'a>) -> Result<CompactString, NotPlain> {
    let mut first = None;
    plain.list(|plain| match first {
        None => {
            first = Some(pattern.string(plain, Place::Address)?.ok_or(NotPlain)?);
            Ok(())
        }
        Some(_) => plain.skip(),
    })?;
    Ok(first.unwrap_or_default())
}

/// The text of an endpoint without the strings that differ between endpoints: most endpoints of a slice have all else
/// in common with the one before, and equal texts have equal meanings.
#[derive(Default)]
struct Pattern<'a> {
    /// The text before each of these strings, up to and with its quotation mark.
    parts: Vec<(&'a str, Place)>,
    /// The text after the last of them; empty if there is no pattern yet.
    end: &'a str,
    /// The position in the whole text where the next part begins.
    from: usize,
    conditions: Conditions,
    hints: Option<Box<EndpointHints>>,
}

/// The maximum number of parts of a pattern. What an object may have only once may be repeated in what is ignored, and memory
/// must not depend on it.
const MOST_PARTS: usize = 8;

/// The meaning of a string that differs between endpoints.
#[derive(Clone, Copy)]
enum Place {
    Address,
    NodeName,
    Zone,
    Ignored,
}

impl<'a> Pattern<'a> {
    fn begin(&mut self, plain: &Plain<'a>) {
        (self.from, self.end) = (plain.at, "");
        self.parts.clear();
    }

    /// Decodes a string or `null`.
    fn string(&mut self, plain: &mut Plain<'a>, place: Place) -> Result<Option<CompactString>, NotPlain> {
        if plain.next()? == b'n' {
            return plain.take_word("null").map(|()| None);
        }
        if self.parts.len() == MOST_PARTS {
            return Err(NotPlain);
        }
        let begin = plain.at + 1;
        let text = plain.string()?;
        self.parts.push((&plain.text[self.from..begin], place));
        self.from = begin + text.len();
        Ok(Some(text.into()))
    }

    fn end(&mut self, plain: &Plain<'a>, endpoint: &Endpoint) {
        self.end = &plain.text[self.from..plain.at];
        (self.conditions, self.hints) = (endpoint.conditions, endpoint.hints.clone());
    }

    /// The next endpoint, if it has the pattern. All fields that it may have besides the strings are those of the one before.
    fn next(&self, plain: &mut Plain<'a>) -> Result<Endpoint, NotPlain> {
        if self.end.is_empty() {
            return Err(NotPlain);
        }
        let mut endpoint = Endpoint { conditions: self.conditions, hints: self.hints.clone(), ..Endpoint::default() };
        for (before, place) in &self.parts {
            plain.take_word(before)?;
            let text = plain.text()?;
            match place {
                Place::Address => endpoint.address = text.into(),
                Place::NodeName => endpoint.node_name = Some(text.into()),
                Place::Zone => endpoint.zone = Some(text.into()),
                Place::Ignored => {}
            }
        }
        plain.take_word(self.end)?;
        Ok(endpoint)
    }
}
