//! The parser as a program: compiles it, and sends it packets.

use std::io::{BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Length of `struct result` in bytes.
const RESULT: usize = 68;

/// A packet for the parser.
pub(crate) struct Request<'a> {
    pub(crate) frame: &'a [u8],
    /// Bytes that the kernel has in one piece.
    pub(crate) linear: usize,
    pub(crate) gso_size: u32,
}

/// `struct result` of `parser.c`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Read {
    /// A value of `enum parsed`.
    pub(crate) parsed: u32,
    pub(crate) transport: usize,
    pub(crate) end: usize,
    pub(crate) part: u32,
    pub(crate) fragment_id: u32,
    pub(crate) source: [u8; 16],
    pub(crate) target: [u8; 16],
    pub(crate) source_port: u16,
    pub(crate) target_port: u16,
    pub(crate) protocol: u8,
    pub(crate) tcp_flags: u8,
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: u32,
    pub(crate) ttl: u8,
    pub(crate) is_v6: bool,
}

/// The running program. It ends with a message if a sanitizer finds something.
pub(crate) struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

fn compile(directory: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/packet_parser");
    let program = directory.join("parser");
    let status = Command::new("gcc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Werror", "-Wno-unused-function", "-Wno-unused-variable"])
        // The kernel's headers are declared as not aligned: a link-layer header has 14 bytes.
        .args(["-fsanitize=address,undefined", "-fno-sanitize=alignment", "-fno-sanitize-recover=all"])
        .arg("-I")
        .arg(source.join("include"))
        .arg(source.join("parser.c"))
        .arg("-o")
        .arg(&program)
        .status()
        .expect("gcc");
    assert!(status.success(), "the parser does not compile for this machine");
    program
}

impl Program {
    pub(crate) fn start() -> Self {
        // The program is not needed as a file any more as soon as it runs.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let path = compile(directory.path());
        let mut child = Command::new(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the parser");
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    pub(crate) fn read(&mut self, request: &Request<'_>) -> Read {
        let word = |number: usize| u32::try_from(number).unwrap().to_ne_bytes();
        let mut bytes = [word(request.frame.len()), word(request.linear), request.gso_size.to_ne_bytes()].concat();
        bytes.extend_from_slice(request.frame);
        let mut result = [0; RESULT];
        let done = self.input.write_all(&bytes).and_then(|()| self.output.read_exact(&mut result));
        assert!(done.is_ok(), "the parser ended at {:02x?}; its message is above", request.frame);
        let word = |at: usize| u32::from_ne_bytes(result[at..at + 4].try_into().unwrap());
        let port = |at: usize| u16::from_be_bytes(result[at..at + 2].try_into().unwrap());
        Read {
            parsed: word(0),
            transport: word(4) as usize,
            end: word(8) as usize,
            part: word(12),
            sequence: word(16),
            acknowledgment: word(20),
            fragment_id: u32::from_be_bytes(result[24..28].try_into().unwrap()),
            source: result[28..44].try_into().unwrap(),
            target: result[44..60].try_into().unwrap(),
            source_port: port(60),
            target_port: port(62),
            protocol: result[64],
            tcp_flags: result[65],
            ttl: result[66],
            is_v6: result[67] != 0,
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop((self.child.kill(), self.child.wait()));
    }
}
