"""Whether adapting does harm, told without labels: signs of health, and the guard that acts on them."""
