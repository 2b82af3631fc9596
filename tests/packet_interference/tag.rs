//! The bytes and numbers that identify what honest parties send wherever it appears. Strangers know neither: they
//! cannot see the packets of others.

/// The sequence numbers of honest clients and backends, and of backends that answer strangers, lie in these parts of the
/// space. Strangers choose theirs elsewhere: their guess misses. A guess that hits the window, one in 4,096 if the number
/// is random, is excluded.
const CLIENTS: u32 = 0x5000_0000;
const BACKENDS: u32 = 0xa000_0000;
const OTHERS: u32 = 0xc000_0000;
const SIZE: u32 = 0x1000_0000;

/// The last number that a stranger may choose, but for some constants.
pub(crate) const STRANGERS: u32 = 0x4000_0000;

/// A connection, or a request, of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Label {
    pub(crate) user: u8,
    pub(crate) connection: u8,
}

impl Label {
    /// The first sequence number of the client. Those of its connections are as far from each other as those that hosts choose
    /// (RFC 6528).
    pub(crate) fn first_number(self) -> u32 {
        CLIENTS + (u32::from(self.connection % 32) << 23) + (u32::from(self.user % 32) << 18)
    }

    /// The connection with this first number of the client.
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        let place = number.wrapping_sub(CLIENTS);
        let label =
            || Self { connection: u8::try_from(place >> 23).unwrap(), user: u8::try_from(place >> 18 & 31).unwrap() };
        (place < SIZE).then(label)
    }
}

/// The first number of a backend that answers this one.
pub(crate) fn answering(number: u32) -> u32 {
    match number.wrapping_sub(CLIENTS) {
        place if place < SIZE => BACKENDS + place,
        _ => OTHERS + number.wrapping_mul(0x9e37_79b1) % (SIZE - (1 << 22)),
    }
}

/// What is in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The receiver answers.
    Question,
    Answer,
    /// The receiver does not answer.
    Note,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Message {
    pub(crate) label: Label,
    pub(crate) number: u8,
    pub(crate) kind: Kind,
}

/// Length of the pattern that a message repeats.
pub(crate) const TAG: usize = 8;

/// What no stranger sends.
const SECRET: [u8; 3] = [0x9d, 0x3c, 0x71];

impl Message {
    fn tag(self) -> [u8; TAG] {
        let [a, b, c] = SECRET;
        [a, b, c, self.label.user, self.label.connection, self.number, self.kind as u8, 0x0a]
    }

    /// The message with this length in bytes.
    pub(crate) fn bytes(self, length: usize) -> Vec<u8> {
        self.tag().into_iter().cycle().take(length).collect()
    }

    /// Reads a message; `None` if the bytes are not those of one message.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let tag = bytes.get(..TAG).filter(|tag| tag[..3] == SECRET)?;
        let kind = match tag[6] {
            0 => Kind::Question,
            1 => Kind::Answer,
            2 => Kind::Note,
            _ => return None,
        };
        let message = Self { label: Label { user: tag[3], connection: tag[4] }, number: tag[5], kind };
        let is_whole = bytes.iter().zip(tag.iter().cycle()).all(|(byte, wanted)| byte == wanted);
        (is_whole && message.tag() == tag).then_some(message)
    }
}

/// Whether the bytes contain anything of an honest party.
pub(crate) fn has_secret(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|part| part == SECRET)
}
