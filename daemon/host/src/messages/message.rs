//! A message and its id.

use std::fmt;

/// The id of a message. It is permanent and never assigned to another message. Displayed in the format of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u128);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A message, independent of the text of a particular line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The name of the constant in the code.
    pub name: &'static str,
    /// The value of `MESSAGE_ID=`.
    pub id: MessageId,
    /// What has happened, in one line.
    pub subject: &'static str,
    /// The meaning. `@FIELD@` stands for a field of the line.
    pub explanation: &'static str,
    pub remedy: &'static str,
}
