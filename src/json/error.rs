//! Why a text is not JSON, and where. No part of the text is ever in an error: bodies hold secrets, errors go to logs.

use std::fmt;

/// A text that was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}, at {location}: {kind}")]
pub struct Error {
    /// The byte of the text, counted from 0, at which it stopped being acceptable.
    offset: usize,
    location: Location,
    kind: Kind,
}

impl Error {
    pub(super) fn new(offset: usize, kind: Kind) -> Error {
        Error { offset, location: Location::default(), kind }
    }

    /// Adds the step that leads from the enclosing value to what is known so far: called from the inside out.
    pub(super) fn within(mut self, step: Step) -> Error {
        self.location.inner_first.push(step);
        self
    }

    /// The byte of the text, counted from 0, at which it stopped being acceptable.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The value that was being read.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// What is wrong.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

/// One step from a value into it. Members are counted instead of named: names are content too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The member of an object, counted from 0 in the order of the text.
    Member(usize),
    /// The item of an array, counted from 0.
    Item(usize),
}

/// The way from the whole text to one value, such as `$.member(2)[0]`: the first item of the third member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Location {
    inner_first: Vec<Step>,
}

impl Location {
    /// The steps, from the outermost value inwards.
    pub fn steps(&self) -> impl Iterator<Item = Step> {
        self.inner_first.iter().rev().copied()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("$")?;
        for step in self.steps() {
            match step {
                Step::Member(index) => write!(f, ".member({index})")?,
                Step::Item(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// What is wrong with a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Kind {
    /// Nothing, or nothing but white space.
    #[error("the text is empty; a JSON value is required")]
    Empty,
    /// U+FEFF before the value, which RFC 8259 forbids senders to add.
    #[error("a byte order mark; send UTF-8 without one")]
    ByteOrderMark,
    /// Bytes that are no UTF-8, or UTF-8 of a surrogate.
    #[error("invalid UTF-8")]
    InvalidUtf8,
    /// The text ends inside a value.
    #[error("the text ends inside a value")]
    UnexpectedEnd,
    /// Neither a value's first character nor one of the three literals. NaN and Infinity are none.
    #[error("a value is expected: an object, an array, a string, a number, true, false or null")]
    ValueExpected,
    /// A name in double quotes must follow.
    #[error("a member name in double quotes is expected")]
    NameExpected,
    /// A colon must follow a name.
    #[error("a colon is expected after the member name")]
    ColonExpected,
    /// Neither a comma nor the end of the array follows an item.
    #[error("a comma or a closing bracket is expected after the item")]
    ItemSeparatorExpected,
    /// Neither a comma nor the end of the object follows a member.
    #[error("a comma or a closing brace is expected after the member")]
    MemberSeparatorExpected,
    /// Something follows the value.
    #[error("more text follows the value; send exactly one JSON document")]
    TrailingText,
    /// A number that RFC 8259 has no form for.
    #[error("a malformed number")]
    MalformedNumber,
    /// A zero before other digits.
    #[error("a number with a leading zero")]
    LeadingZero,
    /// U+0000 to U+001F stands unescaped in a string.
    #[error("a control character in a string; escape it")]
    ControlCharacter,
    /// A backslash is followed by something that is no escape.
    #[error("an invalid escape in a string")]
    InvalidEscape,
    /// An escaped half of a surrogate pair.
    #[error("an escaped surrogate without its other half, which is no character")]
    LoneSurrogate,
    /// Two members of one object have one name.
    #[error("a member name that the object already has; send each member once")]
    DuplicateMember,
    /// More arrays and objects within each other than the limit.
    #[error("arrays and objects are nested too deep")]
    TooDeep,
}
