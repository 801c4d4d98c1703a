//! `dblock completions` and `dblock man`: for the shell and for `man`.

use std::io::{self, Write as _};
use std::path::Path;

use clap::CommandFactory as _;

use crate::cli::Cli;
use crate::failure::{Code, Failure};

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<Code, Failure> {
    // Written as a whole: the generator panics where its reader leaves.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "dblock", &mut script);
    print(&script)
}

/// The page of the program on stdout, or those of all subcommands in a folder.
pub(crate) fn man(folder: Option<&Path>) -> Result<Code, Failure> {
    if let Some(folder) = folder {
        let written = clap_mangen::generate_to(Cli::command(), folder);
        return written.map(|()| Code::Done).map_err(|error| {
            let message = format!("the pages cannot be written to {}: {error}", folder.display());
            Failure::new(Code::Output, message)
        });
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page)?;
    print(&page)
}

fn print(text: &[u8]) -> Result<Code, Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    out.flush()?;
    Ok(Code::Done)
}
