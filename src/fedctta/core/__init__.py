"""The model as a pure function, and N clients as one stack of tensors."""
