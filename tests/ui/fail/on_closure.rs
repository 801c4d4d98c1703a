use dblock::distributed_lock;

fn main() {
    #[distributed_lock(key = "order")]
    let settle = async || {};
}
