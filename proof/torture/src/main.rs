//! The program of the torture run and of its workers.

fn main() -> std::process::ExitCode {
    dblock_torture::main()
}
