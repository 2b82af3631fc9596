//! The process that runs the programs: `host/serve.c` is its other side.

use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The compiler that made the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiler {
    Gcc,
    Clang,
}

/// Numbers of `enum request` in `host/serve.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Request {
    Start = 1,
    Put = 2,
    Delete = 3,
    Clear = 4,
    List = 5,
    Run = 6,
    Sweep = 7,
    Save = 8,
    Restore = 9,
    Bloom = 10,
    Frontend = 11,
    Age = 12,
    ListRules = 13,
    Former = 14,
    Change = 15,
}

/// The running process.
#[derive(Debug)]
pub(crate) struct Host {
    child: Child,
    input: BufWriter<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Host {
    pub(crate) fn start(compiler: Compiler) -> Self {
        let built = match compiler {
            Compiler::Gcc => concat!(env!("OUT_DIR"), "/gcc"),
            Compiler::Clang => concat!(env!("OUT_DIR"), "/clang"),
        };
        // A test that runs elsewhere brings the program along.
        let program = std::env::var("NODELB_HOST_PROGRAM").unwrap_or_else(|_| built.to_owned());
        let mut command = Command::new(&program);
        // What a program allocates is in maps, which live as long as the process.
        command.env("ASAN_OPTIONS", "detect_leaks=0").env("UBSAN_OPTIONS", "print_stacktrace=1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = (input.expect("a pipe"), output.expect("a pipe"));
        Self { child, input: BufWriter::with_capacity(1 << 16, input), output: BufReader::new(output) }
    }

    /// Sends a request. Those without an answer wait in the buffer until one with an answer follows.
    pub(crate) fn send(&mut self, request: Request, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let length = u32::try_from(length).expect("a request has less than 4 GiB");
        let head = [&[request as u8][..], &length.to_ne_bytes()].concat();
        for part in std::iter::once(&head[..]).chain(parts.iter().copied()) {
            if self.input.write_all(part).is_err() {
                self.fail();
            }
        }
    }

    /// Sends what waits, without a length of its own: the answer to a question.
    pub(crate) fn reply(&mut self, bytes: &[u8]) {
        if self.input.write_all(bytes).and_then(|()| self.input.flush()).is_err() {
            self.fail();
        }
    }

    /// The next answer or question.
    pub(crate) fn receive(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        if self.input.flush().is_err() || self.output.read_exact(&mut length).is_err() {
            self.fail();
        }
        let mut content = vec![0; u32::from_ne_bytes(length) as usize];
        if self.output.read_exact(&mut content).is_err() {
            self.fail();
        }
        content
    }

    /// Fails the test with what the process has said before it ended.
    fn fail(&mut self) -> ! {
        let mut said = String::new();
        if let Some(mut output) = self.child.stderr.take() {
            let _ = output.read_to_string(&mut said);
        }
        let status = self.child.wait();
        panic!("the packet programs have ended ({status:?}):\n{said}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop((self.child.kill(), self.child.wait()));
    }
}
