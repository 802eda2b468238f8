"""What a request gives back: results, traces, receipts, pictures of them."""
